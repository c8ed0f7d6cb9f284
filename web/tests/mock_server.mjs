// A server that answers like Strata's, from a script: the page is tested against it without an engine.
// Prints its address; `node tests/mock_server.mjs [port]`.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../src/strata/server/web/", import.meta.url));
const TYPES = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const MODEL = {
  name: "pocket", family: "qwen4_exp", context: 8192, trained_context: 8192, parameters: 21_000_000, slots: 4,
  notices: ["The draft layer is not used."],
};
const PLAN = { weights: 24_000_000, slot: 40_000_000, slots: 4, states: 160_000_000, machine: 25_000_000_000 };
const REPLY = [
  "A **harbour** is a sheltered port.\n\n",
  "```python\nprint('ship ahoy')\n```\n\n",
  "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>",
  "[bad](javascript:document.title='hacked') and [good](https://example.org)\n",
];

function statistics(second) {
  const slot = (number, phase, change) => ({
    id: number, phase, prompt_tokens: 0, read_tokens: 0, reply_tokens: 0, kept_tokens: 0,
    longest_gap_ms: 0, ...change,
  });
  return {
    seconds: second, busy_seconds: second * 0.8, prompt_tokens: 900 * second, cached_tokens: 700 * second,
    reply_tokens: Math.round(40 * second + 15 * Math.sin(second / 3)), windows: 30 * second, drafted_tokens: 20 * second,
    accepted_drafts: 14 * second, waiting: 1,
    slots: [
      slot(0, "decoding", { prompt_tokens: 512, reply_tokens: 20 * second, longest_gap_ms: 40 + 25 * Math.sin(second / 2) }),
      slot(1, "reading", { prompt_tokens: 6000, read_tokens: (512 * second) % 6000 }),
      slot(2, "idle", { kept_tokens: 1810 }),
      slot(3, "idle", {}),
    ],
    experts_read: { experts: 40 * second, bytes: 110_000_000 * second, ns: 20_000_000 * second },
    experts: { vram: 3000 * second, pcie: 400 * second, cpu: Math.round(900 * second + 500 * Math.sin(second / 4)) },
    memory: { weights: 24_000_000, states: 160_000_000, "working memory": 60_000_000 },
  };
}

const machine = () => ({ cpu_percent: 63, ram_used: 6.1e9, ram_total: 25e9, engine: 3e8, gpus: [] });
const address = (request) => `http://${request.headers.host}`;

const live = (second) => ({
  phase: "ready", sentence: "ready", loading: { stage: "", done: 0, total: 0 }, statistics: statistics(second),
  machine: machine(),
});

function status(request) {
  return {
    ...live(1), version: "0", model: MODEL, memory_plan: PLAN, addresses: [address(request)],
    settings: { engine: { threads: null, context: 8192, drafts: 0 }, server: { host: "127.0.0.1", slots: 4 } },
  };
}

const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const send = (response, value) => response.write(`data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`);

async function events(response) {
  for (let second = 1; !response.destroyed; second += 1) {
    send(response, live(second));
    await wait(second < 60 ? 5 : 500); // a minute at once, so that charts have something to show
  }
}

async function chat(request, response, slowly) {
  response.write(": ping\n\n");
  for (const processed of [64, 128, 192]) send(response, { choices: [], prompt_progress: { total: 192, processed } });
  const delta = (content) => send(response, { choices: [{ index: 0, delta: content, finish_reason: null }] });
  delta({ role: "assistant", content: "" });
  delta({ reasoning_content: "The user asks for a word." });
  for (const piece of REPLY) {
    delta({ content: piece });
    await wait(slowly ? 400 : 10);
    if (response.destroyed) return;
  }
  send(response, { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
  send(response, {
    choices: [], usage: { prompt_tokens: 192, completion_tokens: 87, prompt_tokens_details: { cached_tokens: 64 } },
    timings: { prompt_per_second: 1830, predicted_per_second: 43.2, predicted_n: 87, prompt_n: 128, cache_n: 64 },
  });
  send(response, "[DONE]");
  response.end();
}

async function file(path, response) {
  const name = path === "/" ? "index.html" : path.slice(1);
  const found = !name.includes("..") && (await stat(ROOT + name).catch(() => null));
  if (!found || !found.isFile()) return response.writeHead(404).end();
  response.writeHead(200, { "Content-Type": TYPES[name.split(".").at(-1)] ?? "text/plain", "Content-Security-Policy": POLICY });
  createReadStream(ROOT + name).pipe(response);
}

const refuse = (response, code, message) =>
  response.writeHead(code, { "Content-Type": "application/json" }).end(JSON.stringify({ error: { message } }));

async function serve(request, response, key) {
  const { pathname } = new URL(request.url, "http://local");
  const isPublic = pathname === "/" || pathname.startsWith("/assets/");
  if (key && !isPublic && request.headers.authorization !== `Bearer ${key}`) return refuse(response, 401, "wrong key");
  if (pathname === "/strata/status") return response.writeHead(200).end(JSON.stringify(status(request)));
  if (pathname === "/strata/events") return events(response.writeHead(200, { "Content-Type": "text/event-stream" }));
  if (pathname === "/v1/chat/completions") {
    const parts = [];
    for await (const part of request) parts.push(part);
    const question = JSON.parse(Buffer.concat(parts)).messages.at(-1).content;
    if (question === "refuse") return refuse(response, 400, "the prompt has 9000 tokens and the context holds 8192");
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    return chat(request, response, question === "slowly");
  }
  return file(pathname, response);
}

/** Starts on a free port; with `key`, everything but the page asks for it. */
export async function startMock({ port = 0, key = "" } = {}) {
  const server = createServer((request, response) => void serve(request, response, key));
  await new Promise((ready) => server.listen(port, "127.0.0.1", ready));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.closeAllConnections() ?? server.close() };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  console.log((await startMock({ port: Number(process.argv[2] ?? 0) })).url);
}
