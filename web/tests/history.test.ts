import { expect, test } from "vitest";
import type { Live, Statistics } from "../src/lib/status";
import { emptyHistory, KEPT_SAMPLES, withEvent } from "../src/monitor/history";

function event(seconds: number, change: Partial<Statistics> = {}): Live {
  const statistics: Statistics = {
    seconds, busy_seconds: seconds / 2, prompt_tokens: 0, cached_tokens: 0, reply_tokens: 10 * seconds, windows: 0,
    drafted_tokens: 0, accepted_drafts: 0, waiting: 0, slots: [], experts: {}, experts_read: {}, memory: {}, ...change,
  };
  return { phase: "ready", sentence: "", loading: { stage: "", done: 0, total: 0 }, statistics, machine: null };
}

test("rates are differences of counters over the engine's own time", () => {
  let history = withEvent(emptyHistory, event(1));
  history = withEvent(history, event(3, { experts: { vram: 30, cpu: 10 }, drafted_tokens: 4, accepted_drafts: 3 }));
  expect(history.samples).toHaveLength(1);
  expect(history.samples[0]).toMatchObject({
    replyRate: 10, busy: 0.5, tiers: { vram: 15, pcie: 0, cpu: 5 }, hitRate: 0.75, acceptance: 0.75,
  });
});

test("an engine that started again gives no negative rates", () => {
  let history = withEvent(emptyHistory, event(100));
  history = withEvent(history, event(1));
  history = withEvent(history, event(2));
  expect(history.samples.map((sample) => sample.replyRate)).toEqual([10]);
});

test("the gap is that of running streams, and old samples go", () => {
  const slot = {
    id: 0, prompt_tokens: 0, read_tokens: 0, reply_tokens: 0, kept_tokens: 0, longest_gap_ms: 70,
  };
  let history = emptyHistory;
  for (let second = 1; second <= KEPT_SAMPLES + 5; second += 1) {
    const slots = [{ ...slot, phase: "decoding" as const }, { ...slot, phase: "idle" as const, longest_gap_ms: 900 }];
    history = withEvent(history, event(second, { slots }));
  }
  expect(history.samples).toHaveLength(KEPT_SAMPLES);
  expect(history.samples.at(-1)).toMatchObject({ longestGap: 70, streams: 1 });
});
