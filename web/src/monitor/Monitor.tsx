// What the engine does right now and did in the last minutes.

import { bytes, count, rate, seconds } from "../lib/format";
import type { Machine, SlotView, Statistics, Status } from "../lib/status";
import { Chart } from "./Chart";
import type { History, Sample } from "./history";

export function Monitor({ status, history }: { status: Status; history: History }) {
  const { statistics, machine } = status;
  if (statistics === null) return <section class="monitor"><p class="empty">{status.sentence}</p></section>;
  return (
    <section class="monitor">
      <Figures statistics={statistics} last={history.samples.at(-1)} />
      <Charts samples={history.samples} />
      <Slots slots={statistics.slots} waiting={statistics.waiting} />
      <Memory status={status} statistics={statistics} machine={machine} />
    </section>
  );
}

function Figures({ statistics, last }: { statistics: Statistics; last: Sample | undefined }) {
  const read = statistics.prompt_tokens + statistics.cached_tokens;
  const filed = statistics.experts_read;
  return (
    <dl class="figures">
      <Figure name="tokens/s" value={rate(last?.replyRate ?? 0)} />
      <Figure name="prompt tokens/s" value={rate(last?.promptRate ?? 0)} />
      <Figure name="engine busy" value={`${Math.round((last?.busy ?? 0) * 100)} %`} />
      <Figure name="longest gap" value={seconds((last?.longestGap ?? 0) / 1000)} />
      <Figure name="prompt tokens kept" value={read > 0 ? `${Math.round((100 * statistics.cached_tokens) / read)} %` : "-"} />
      <Figure name="drafts accepted" value={share(statistics.accepted_drafts, statistics.drafted_tokens)} />
      <Figure name="tokens written" value={count(statistics.reply_tokens)} />
      {filed.experts !== undefined && (
        <Figure name="experts read from the file" value={`${count(filed.experts)}, ${bytes(filed.bytes ?? 0)}`} />
      )}
      <Figure name="running for" value={seconds(statistics.seconds)} />
    </dl>
  );
}

const share = (part: number, whole: number): string => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "-");

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Charts({ samples }: { samples: Sample[] }) {
  const times = samples.map((sample) => sample.time);
  const of = (pick: (sample: Sample) => number | null) => samples.map(pick);
  return (
    <div class="charts">
      <Chart
        title="Speed" unit="tokens/s" times={times}
        series={[
          { label: "replies", color: "blue", values: of((s) => s.replyRate) },
          { label: "prompts", color: "orange", values: of((s) => s.promptRate) },
        ]}
      />
      <Chart
        title="Longest gap of a running stream" unit="ms" times={times}
        series={[{ label: "gap", color: "red", values: of((s) => s.longestGap) }]}
      />
      <Chart
        title="Where experts ran" unit="rows/s" times={times} isStacked
        series={[
          { label: "VRAM", color: "green", values: of((s) => s.tiers.vram) },
          { label: "PCIe", color: "orange", values: of((s) => s.tiers.pcie) },
          { label: "CPU", color: "blue", values: of((s) => s.tiers.cpu) },
        ]}
      />
      <Chart
        title="Rates" unit="%" times={times} max={100}
        series={[
          { label: "experts found in VRAM", color: "green", values: of((s) => percent(s.hitRate)) },
          { label: "engine busy", color: "blue", values: of((s) => percent(s.busy)) },
        ]}
      />
    </div>
  );
}

const percent = (value: number | null): number | null => (value === null ? null : value * 100);

function Slots({ slots, waiting }: { slots: SlotView[]; waiting: number }) {
  return (
    <div class="panel">
      <h2>
        Slots <small>{waiting > 0 ? `${waiting} waiting` : "nobody waits"}</small>
      </h2>
      <table>
        <thead>
          <tr><th>slot</th><th>doing</th><th>prompt</th><th>reply</th><th>kept</th><th>longest gap</th></tr>
        </thead>
        <tbody>
          {slots.map((slot) => (
            <tr key={slot.id} class={slot.phase}>
              <td>{slot.id}</td>
              <td>{slot.phase}</td>
              <td>
                {slot.phase === "reading" ? (
                  <>
                    <progress max={slot.prompt_tokens} value={slot.read_tokens} /> {count(slot.read_tokens)} of{" "}
                    {count(slot.prompt_tokens)}
                  </>
                ) : (
                  count(slot.prompt_tokens)
                )}
              </td>
              <td>{count(slot.reply_tokens)}</td>
              <td>{count(slot.kept_tokens)}</td>
              <td>{slot.phase === "decoding" ? `${Math.round(slot.longest_gap_ms)} ms` : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Memory({ status, statistics, machine }: { status: Status; statistics: Statistics; machine: Machine | null }) {
  const { model, memory_plan: plan } = status;
  const uses = Object.entries(statistics.memory);
  const total = uses.reduce((sum, [, size]) => sum + size, 0);
  return (
    <div class="panel">
      <h2>
        Memory <small>{bytes(total)} held</small>
      </h2>
      {uses.map(([use, size]) => (
        <Bar key={use} name={use} part={size} whole={Math.max(total, 1)} text={bytes(size)} />
      ))}
      {machine !== null && (
        <>
          <h2>Machine</h2>
          <Bar name="CPU" part={machine.cpu_percent} whole={100} text={`${Math.round(machine.cpu_percent)} %`} />
          <Bar name="RAM" part={machine.ram_used} whole={machine.ram_total} text={`${bytes(machine.ram_used)} of ${bytes(machine.ram_total)}`} />
          {machine.gpus.map((gpu) => (
            <Bar key={gpu.name} name={gpu.name} part={gpu.memory_used} whole={gpu.memory_total}
              text={`${bytes(gpu.memory_used)} of ${bytes(gpu.memory_total)}, ${Math.round(gpu.busy_percent)} % busy`} />
          ))}
        </>
      )}
      {model !== null && plan !== null && (
        <p class="notices">
          Planned: weights {bytes(plan.weights)}, {plan.slots} slots of at most {bytes(plan.slot)} for{" "}
          {count(model.context)} tokens each. {model.notices.join(" ")}
        </p>
      )}
    </div>
  );
}

function Bar(props: { name: string; part: number; whole: number; text: string }) {
  return (
    <div class="bar">
      <span>{props.name}</span>
      <meter min={0} max={props.whole} value={props.part} />
      <span>{props.text}</span>
    </div>
  );
}
