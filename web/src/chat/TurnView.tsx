// One turn of a conversation: reasoning folded, text, calls of tools, and what it took.

import { count, rate } from "../lib/format";
import type { Turn } from "./conversation";
import { Markdown } from "./Markdown";

export function TurnView({ turn }: { turn: Turn }) {
  if (turn.role === "user") return <article class="turn user">{turn.content}</article>;
  return (
    <article class="turn assistant" aria-busy={turn.state === "waiting" || turn.state === "writing"}>
      {turn.reasoning !== "" && (
        <details class="reasoning" open={turn.content === "" && turn.state === "writing"}>
          <summary>{turn.content === "" && turn.state === "writing" ? "Thinking…" : "Thoughts"}</summary>
          <p>{turn.reasoning}</p>
        </details>
      )}
      {turn.content !== "" && <Markdown text={turn.content} />}
      {turn.toolCalls.map((call, index) => (
        <div class="tool-call" key={index}>
          <b>{call.name}</b>
          <code>{call.arguments}</code>
        </div>
      ))}
      {turn.state === "waiting" && <Waiting turn={turn} />}
      {turn.note !== "" && <p class={turn.state === "failed" ? "note failed" : "note"}>{turn.note}</p>}
      {turn.state === "stopped" && <p class="note">Stopped.</p>}
      {turn.timings !== null && <TimingsLine turn={turn} />}
    </article>
  );
}

function Waiting({ turn }: { turn: Turn }) {
  if (turn.promptTotal === 0) return <p class="waiting">Waiting for a free slot…</p>;
  return (
    <p class="waiting">
      Reading the prompt: {count(turn.promptDone)} of {count(turn.promptTotal)} tokens{" "}
      <progress max={turn.promptTotal} value={turn.promptDone} />
    </p>
  );
}

function TimingsLine({ turn }: { turn: Turn }) {
  const timings = turn.timings!;
  const cached = timings.cachedTokens > 0 ? `, ${count(timings.cachedTokens)} kept` : "";
  return (
    <p class="timings">
      {count(timings.replyTokens)} tokens at <b>{rate(timings.replyPerSecond)}/s</b> · prompt{" "}
      {count(timings.promptTokens)} tokens{cached} at {rate(timings.promptPerSecond)}/s
    </p>
  );
}
