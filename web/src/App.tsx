// The frame: what is served, three views, and the question for a key where the server wants one.

import { useState } from "preact/hooks";
import { Chat } from "./chat/Chat";
import { Connect } from "./connect/Connect";
import { apiKey } from "./lib/api";
import { rate } from "./lib/format";
import { type Followed, useStatus } from "./lib/useStatus";
import { Monitor } from "./monitor/Monitor";

const VIEWS = ["Chat", "Monitor", "Connect"] as const;

export function App() {
  const [view, setView] = useState<(typeof VIEWS)[number]>("Chat");
  const [asksForKey, setAsksForKey] = useState(false);
  const [keyVersion, setKeyVersion] = useState(0);
  const live = useStatus(keyVersion, () => setAsksForKey(true));
  return (
    <>
      <header>
        <h1>Strata</h1>
        <nav>
          {VIEWS.map((name) => (
            <button type="button" key={name} aria-current={name === view ? "page" : undefined} onClick={() => setView(name)}>
              {name}
            </button>
          ))}
        </nav>
        <StateLine live={live} />
      </header>
      {asksForKey && (
        <KeyForm
          onKey={(key) => {
            apiKey.set(key);
            setAsksForKey(false);
            setKeyVersion(keyVersion + 1);
          }}
        />
      )}
      <main>
        <div hidden={view !== "Chat"}>
          <Chat onUnauthorized={() => setAsksForKey(true)} />
        </div>
        {view === "Monitor" && live.status !== null && <Monitor status={live.status} history={live.history} />}
        {view === "Connect" && live.status !== null && <Connect status={live.status} />}
      </main>
    </>
  );
}

function StateLine({ live }: { live: Followed }) {
  if (live.status === null || !live.isConnected) return <p class="state lost">not connected</p>;
  const { phase, sentence, loading, model } = live.status;
  const progress = loading.total > 0 ? ` ${Math.round((100 * loading.done) / loading.total)} %` : "";
  const speed = live.history.samples.at(-1)?.replyRate ?? 0;
  return (
    <p class={`state ${phase}`}>
      <b>{model?.name ?? ""}</b> {phase === "ready" ? `${rate(speed)} tokens/s` : `${sentence}${progress}`}
    </p>
  );
}

function KeyForm({ onKey }: { onKey: (key: string) => void }) {
  const [key, setKey] = useState("");
  return (
    <form
      class="key-form"
      onSubmit={(e) => {
        e.preventDefault();
        onKey(key.trim());
      }}
    >
      <label>
        This server asks for an API key{" "}
        <input type="password" autocomplete="off" value={key} onInput={(e) => setKey(e.currentTarget.value)} />
      </label>
      <button type="submit" class="primary" disabled={key.trim() === ""}>
        Use it
      </button>
    </form>
  );
}
