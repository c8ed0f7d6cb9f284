// The chat: turns, the box to write in, and the reply that is under way.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, openStream } from "../lib/api";
import { eventsOf } from "../lib/sse";
import { asMessages, type Chunk, turn, type Turn, withChunk } from "./conversation";
import { TurnView } from "./TurnView";

export function Chat({ onUnauthorized }: { onUnauthorized: () => void }) {
  const [turns, setTurns] = useState<Turn[]>([]);
  const [system, setSystem] = useState("");
  const [temperature, setTemperature] = useState("0");
  const running = useRef<AbortController | null>(null);
  const isRunning = turns.at(-1)?.state === "waiting" || turns.at(-1)?.state === "writing";

  const setReply = (change: (reply: Turn) => Turn) =>
    setTurns((all) => (all.length === 0 ? all : [...all.slice(0, -1), change(all[all.length - 1]!)]));

  async function send(text: string): Promise<void> {
    const before = [...turns, turn("user", text, "done")];
    setTurns([...before, turn("assistant", "", "waiting")]);
    const control = new AbortController();
    running.current = control;
    try {
      await stream(asMessages(system, before), Number(temperature), control.signal, setReply);
      setReply((reply) => (reply.state === "done" || reply.state === "failed" ? reply : lost(reply)));
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 401) onUnauthorized();
      setReply((reply) => ended(reply, control.signal.aborted, failure));
    }
  }

  return (
    <section class="chat">
      <div class="turns" role="log" aria-live="polite">
        {turns.length === 0 && <p class="empty">Ask something. The conversation stays on this machine.</p>}
        {turns.map((one, index) => (
          <TurnView turn={one} key={index} />
        ))}
        <KeepAtEnd when={turns} />
      </div>
      <Composer isRunning={isRunning} onSend={send} onStop={() => running.current?.abort()} />
      <footer class="options">
        <label>
          Temperature{" "}
          <input type="number" min="0" max="2" step="0.1" value={temperature} onInput={(e) => setTemperature(e.currentTarget.value)} />
        </label>
        <label class="grow">
          System{" "}
          <input placeholder="what the model should know about its task" value={system} onInput={(e) => setSystem(e.currentTarget.value)} />
        </label>
        <button type="button" disabled={isRunning || turns.length === 0} onClick={() => setTurns([])}>
          New chat
        </button>
      </footer>
    </section>
  );
}

async function stream(
  messages: { role: string; content: string }[],
  temperature: number,
  signal: AbortSignal,
  onReply: (change: (reply: Turn) => Turn) => void,
): Promise<void> {
  const body = {
    model: "",
    messages,
    temperature,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    timings_per_token: true,
  };
  const response = await openStream("/v1/chat/completions", signal, body);
  for await (const event of eventsOf(response)) {
    if (event.data === "[DONE]") return;
    const chunk = JSON.parse(event.data) as Chunk;
    onReply((reply) => withChunk(reply, chunk));
  }
}

const lost = (reply: Turn): Turn => ({ ...reply, state: "failed", note: "The server ended the reply early." });

function ended(reply: Turn, wasStopped: boolean, failure: unknown): Turn {
  if (wasStopped) return { ...reply, state: "stopped" };
  return { ...reply, state: "failed", note: failure instanceof Error ? failure.message : String(failure) };
}

function Composer(props: { isRunning: boolean; onSend: (text: string) => void; onStop: () => void }) {
  const [text, setText] = useState("");
  const submit = () => {
    if (props.isRunning || text.trim() === "") return;
    props.onSend(text);
    setText("");
  };
  return (
    <form
      class="composer"
      onSubmit={(e) => {
        e.preventDefault();
        submit();
      }}
    >
      <textarea
        aria-label="Message"
        placeholder="Message — Enter sends, Shift+Enter starts a new line"
        rows={Math.min(8, text.split("\n").length + 1)}
        value={text}
        onInput={(e) => setText(e.currentTarget.value)}
        onKeyDown={(e) => {
          if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
          e.preventDefault();
          submit();
        }}
      />
      {props.isRunning ? (
        <button type="button" class="primary" onClick={props.onStop}>
          Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={text.trim() === ""}>
          Send
        </button>
      )}
    </form>
  );
}

/** Scrolls along while the reader is at the end, and leaves a reader alone who has scrolled up. */
function KeepAtEnd({ when }: { when: unknown }) {
  const end = useRef<HTMLDivElement>(null);
  const wasAtEnd = useRef(true);
  useEffect(() => {
    const box = end.current?.parentElement;
    if (!box) return;
    const watch = () => (wasAtEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 80);
    box.addEventListener("scroll", watch);
    return () => box.removeEventListener("scroll", watch);
  }, []);
  useEffect(() => {
    if (wasAtEnd.current) end.current?.scrollIntoView({ block: "end" });
  }, [when]);
  return <div ref={end} />;
}
