// How other programs reach this server, and the settings it runs under.

import { bytes, count } from "../lib/format";
import type { Status } from "../lib/status";

const APIS = [
  ["OpenAI", "/v1"],
  ["Anthropic", ""],
  ["metrics", "/metrics"],
  ["API description", "/docs"],
] as const;

export function Connect({ status }: { status: Status }) {
  const model = status.model;
  const base = location.origin;
  return (
    <section class="connect">
      <div class="panel">
        <h2>Addresses</h2>
        <table>
          <tbody>
            {status.addresses.flatMap((base) =>
              APIS.map(([name, path]) => (
                <tr key={base + name}><td>{name}</td><td><code>{base + path}</code></td></tr>
              )),
            )}
          </tbody>
        </table>
        <h2>Try it</h2>
        <pre>{`curl ${base}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d '{"model": "${model?.name ?? "model"}", "messages": [{"role": "user", "content": "Hello"}]}'`}</pre>
        <h2>Coding agents</h2>
        <pre>{`# Claude Code\nexport ANTHROPIC_BASE_URL=${base} ANTHROPIC_AUTH_TOKEN=local\n\n# anything that speaks OpenAI's API\nexport OPENAI_BASE_URL=${base}/v1 OPENAI_API_KEY=local`}</pre>
      </div>
      {model !== null && (
        <div class="panel">
          <h2>Model</h2>
          <table>
            <tbody>
              <tr><td>name</td><td>{model.name}</td></tr>
              <tr><td>family</td><td>{model.family}</td></tr>
              <tr><td>parameters</td><td>{count(model.parameters)}</td></tr>
              <tr><td>weights</td><td>{bytes(status.memory_plan?.weights ?? 0)}</td></tr>
              <tr><td>context</td><td>{count(model.context)} tokens</td></tr>
            </tbody>
          </table>
        </div>
      )}
      <div class="panel">
        <h2>Settings in use</h2>
        {Object.entries(status.settings).map(([section, values]) => (
          <table key={section}>
            <caption>[{section}]</caption>
            <tbody>
              {Object.entries(values).map(([name, value]) => (
                <tr key={name}><td>{name}</td><td><code>{value === null ? "not set" : String(value)}</code></td></tr>
              ))}
            </tbody>
          </table>
        ))}
      </div>
    </section>
  );
}
