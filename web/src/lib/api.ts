// Calls to the server this page came from, with the user's key if it asks for one.

const KEY = "strata-api-key";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The key lives as long as the tab: it is never written to disk. */
export const apiKey = {
  get: (): string => sessionStorage.getItem(KEY) ?? "",
  set: (key: string): void => sessionStorage.setItem(KEY, key),
};

function headers(): Record<string, string> {
  const key = apiKey.get();
  return key === "" ? {} : { Authorization: `Bearer ${key}` };
}

async function checked(response: Response): Promise<Response> {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(response.status, body?.error?.message ?? `the server answered ${response.status}`);
}

export async function getJson<T>(path: string): Promise<T> {
  const response = await checked(await fetch(path, { headers: headers() }));
  return (await response.json()) as T;
}

export async function openStream(path: string, signal: AbortSignal, body?: unknown): Promise<Response> {
  const request: RequestInit =
    body === undefined
      ? { headers: headers(), signal }
      : {
          method: "POST",
          headers: { ...headers(), "Content-Type": "application/json" },
          body: JSON.stringify(body),
          signal,
        };
  return checked(await fetch(path, request));
}
