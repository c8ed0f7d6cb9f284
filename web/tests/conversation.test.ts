import { expect, test } from "vitest";
import { asMessages, type Chunk, turn, withChunk } from "../src/chat/conversation";

const waiting = turn("assistant", "", "waiting");
const delta = (content: object): Chunk => ({ choices: [{ delta: content }] });

test("a reply grows by its pieces and keeps what it took", () => {
  const chunks: Chunk[] = [
    { prompt_progress: { total: 10, processed: 5 } },
    delta({ role: "assistant", content: "" }),
    delta({ reasoning_content: "hm" }),
    delta({ content: "Hel" }),
    delta({ content: "lo" }),
    { choices: [{ delta: {}, finish_reason: "stop" }] },
    {
      choices: [],
      usage: { prompt_tokens: 10, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 4 } },
      timings: { prompt_per_second: 100, predicted_per_second: 20, predicted_n: 3, prompt_n: 6, cache_n: 4 },
    },
  ];
  const reply = chunks.reduce(withChunk, waiting);
  expect(reply).toMatchObject({ content: "Hello", reasoning: "hm", state: "done", promptDone: 5, promptTotal: 10 });
  expect(reply.timings).toEqual({
    promptTokens: 10, cachedTokens: 4, promptPerSecond: 100, replyTokens: 3, replyPerSecond: 20,
  });
});

test("an empty first piece does not end the waiting", () => {
  expect(withChunk(waiting, delta({ role: "assistant", content: "" })).state).toBe("waiting");
});

test("calls of tools are put together by their index", () => {
  const chunks = [
    delta({ tool_calls: [{ index: 0, function: { name: "look", arguments: "" } }] }),
    delta({ tool_calls: [{ index: 1, function: { name: "ask", arguments: "{" } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: "{}" } }] }),
  ];
  expect(chunks.reduce(withChunk, waiting).toolCalls).toEqual([
    { name: "look", arguments: "{}" },
    { name: "ask", arguments: "{" },
  ]);
});

test("an error in the stream is shown", () => {
  expect(withChunk(waiting, { error: { message: "the engine restarts" } })).toMatchObject({
    state: "failed", note: "the engine restarts",
  });
});

test("a reply at its limit says that it is cut", () => {
  expect(withChunk(waiting, { choices: [{ delta: {}, finish_reason: "length" }] }).note).toMatch(/cut off/);
});

test("a question whose answer never came is not sent again", () => {
  const turns = [
    turn("user", "one", "done"), turn("assistant", "", "failed"),
    turn("user", "two", "done"), turn("assistant", "yes", "stopped"), turn("user", "three", "done"),
  ];
  expect(asMessages(" ", turns).map((message) => message.content)).toEqual(["two", "yes", "three"]);
  expect(asMessages("be kind", turns)[0]).toEqual({ role: "system", content: "be kind" });
});
