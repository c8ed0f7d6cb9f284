import { expect, test } from "vitest";
import { EventParser, eventsOf, type ServerEvent } from "../src/lib/sse";

const STREAM = 'data: {"a": 1}\n\n: ping\n\nevent: status\r\ndata: one\r\ndata: two\r\n\r\ndata: Größe 😀\n\ndata: [DONE]\n\n';
const EVENTS: ServerEvent[] = [
  { name: "message", data: '{"a": 1}' },
  { name: "status", data: "one\ntwo" },
  { name: "message", data: "Größe 😀" },
  { name: "message", data: "[DONE]" },
];

test("any cut of the text gives the same events", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const parser = new EventParser();
    expect([...parser.feed(STREAM.slice(0, cut)), ...parser.feed(STREAM.slice(cut))]).toEqual(EVENTS);
  }
});

test("characters cut in the middle of their bytes arrive whole", async () => {
  const bytes = new TextEncoder().encode(STREAM);
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
      controller.close();
    },
  });
  const found: ServerEvent[] = [];
  for await (const event of eventsOf(new Response(body))) found.push(event);
  expect(found).toEqual(EVENTS);
});

test("leaving early cancels the response", async () => {
  let wasCancelled = false;
  const body = new ReadableStream<Uint8Array>({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("data: x\n\n")),
    cancel: () => {
      wasCancelled = true;
    },
  });
  for await (const _ of eventsOf(new Response(body))) break;
  expect(wasCancelled).toBe(true);
});
