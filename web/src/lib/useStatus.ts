// The server's state as a hook: read once, then kept up by its events; asks again when the connection is lost.
// A hidden tab lets go of its connection: a browser opens six to one server, and six tabs would take them all.

import { useEffect, useState } from "preact/hooks";
import { emptyHistory, type History, withEvent } from "../monitor/history";
import { ApiError, getJson, openStream } from "./api";
import { eventsOf } from "./sse";
import type { Live, Status } from "./status";

const RETRY_MS = 2000;

export interface Followed {
  status: Status | null;
  history: History;
  isConnected: boolean;
}

export function useStatus(keyVersion: number, onUnauthorized: () => void): Followed {
  const [live, setLive] = useState<Followed>({ status: null, history: emptyHistory, isConnected: false });
  useEffect(() => {
    let control = new AbortController();
    const followWhileSeen = () => {
      control.abort();
      control = new AbortController();
      if (!document.hidden) void follow(control.signal, setLive, onUnauthorized);
    };
    followWhileSeen();
    document.addEventListener("visibilitychange", followWhileSeen);
    return () => {
      document.removeEventListener("visibilitychange", followWhileSeen);
      control.abort();
    };
  }, [keyVersion]);
  return live;
}

async function follow(
  signal: AbortSignal,
  setLive: (change: (live: Followed) => Followed) => void,
  onUnauthorized: () => void,
): Promise<void> {
  while (!signal.aborted) {
    try {
      const status = await getJson<Status>("/strata/status");
      setLive((live) => ({ ...live, status, isConnected: true }));
      for await (const event of eventsOf(await openStream("/strata/events", signal))) {
        const message = JSON.parse(event.data) as Live;
        if (message.phase === "ready" && status.model === null) break; // loaded meanwhile: ask for the facts
        setLive((live) => withMessage(live, message));
      }
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 401) return onUnauthorized();
      if (signal.aborted) return;
      setLive((live) => ({ ...live, isConnected: false }));
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
}

function withMessage(live: Followed, message: Live): Followed {
  if (live.status === null) return live;
  const statistics = message.statistics ?? live.status.statistics;
  return {
    isConnected: true,
    status: { ...live.status, ...message, statistics },
    history: withEvent(live.history, message),
  };
}
