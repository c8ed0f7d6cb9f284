// A conversation as the page holds it, and how each event of a reply changes it. Pure: no DOM, no network.

export interface ToolCall {
  name: string;
  arguments: string;
}

export interface Turn {
  role: "user" | "assistant";
  content: string;
  reasoning: string;
  toolCalls: ToolCall[];
  state: "done" | "waiting" | "writing" | "stopped" | "failed";
  note: string; // why it failed, or what was cut off
  promptDone: number; // tokens of the prompt read so far
  promptTotal: number;
  timings: Timings | null;
}

export interface Timings {
  promptTokens: number;
  cachedTokens: number;
  promptPerSecond: number;
  replyTokens: number;
  replyPerSecond: number;
}

/** The parts of a chat.completion.chunk that the page reads. */
export interface Chunk {
  error?: { message?: string };
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; function?: { name?: string; arguments?: string } }[];
    };
    finish_reason?: string | null;
  }[];
  usage?: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: { cached_tokens?: number } } | null;
  timings?: { prompt_per_second: number; predicted_per_second: number; predicted_n: number; prompt_n: number; cache_n: number };
  prompt_progress?: { total: number; processed: number };
}

export function turn(role: Turn["role"], content: string, state: Turn["state"]): Turn {
  return {
    role, content, state, reasoning: "", toolCalls: [], note: "", promptDone: 0, promptTotal: 0, timings: null,
  };
}

/** A reply after one more chunk of it. */
export function withChunk(reply: Turn, chunk: Chunk): Turn {
  if (chunk.error) return { ...reply, state: "failed", note: chunk.error.message ?? "the server reported an error" };
  let next = reply;
  if (chunk.prompt_progress) {
    next = { ...next, promptDone: chunk.prompt_progress.processed, promptTotal: chunk.prompt_progress.total };
  }
  const choice = chunk.choices?.[0];
  if (choice?.delta) next = withDelta(next, choice.delta);
  if (choice?.finish_reason) next = finished(next, choice.finish_reason);
  return withTimings(next, chunk);
}

function withDelta(reply: Turn, delta: NonNullable<NonNullable<Chunk["choices"]>[number]["delta"]>): Turn {
  const content = reply.content + (delta.content ?? "");
  const reasoning = reply.reasoning + (delta.reasoning_content ?? "");
  const toolCalls = (delta.tool_calls ?? []).reduce((calls, part) => {
    const known = calls[part.index] ?? { name: "", arguments: "" };
    const grown = {
      name: known.name + (part.function?.name ?? ""),
      arguments: known.arguments + (part.function?.arguments ?? ""),
    };
    return [...calls.slice(0, part.index), grown, ...calls.slice(part.index + 1)];
  }, reply.toolCalls);
  const isEmpty = content === "" && reasoning === "" && toolCalls.length === 0;
  return { ...reply, content, reasoning, toolCalls, state: isEmpty ? reply.state : "writing" };
}

function finished(reply: Turn, reason: string): Turn {
  const note = reason === "length" ? "The reply reached its limit of tokens and is cut off here." : reply.note;
  return { ...reply, state: "done", note };
}

function withTimings(reply: Turn, chunk: Chunk): Turn {
  if (!chunk.timings) return reply;
  const { timings, usage } = chunk;
  return {
    ...reply,
    timings: {
      promptTokens: usage?.prompt_tokens ?? timings.prompt_n + timings.cache_n,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? timings.cache_n,
      promptPerSecond: timings.prompt_per_second,
      replyTokens: usage?.completion_tokens ?? timings.predicted_n,
      replyPerSecond: timings.predicted_per_second,
    },
  };
}

/** What the API is sent: turns that failed before a word came are left out with the question they belong to. */
export function asMessages(system: string, turns: Turn[]): { role: string; content: string }[] {
  const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const [index, one] of turns.entries()) {
    const answer = turns[index + 1];
    const isLost = one.role === "user" && answer !== undefined && answer.state === "failed" && answer.content === "";
    if (isLost || (one.role === "assistant" && one.content === "")) continue;
    messages.push({ role: one.role, content: one.content });
  }
  return messages;
}
