// The last minutes as series for charts, made from the differences between counters. Pure.

import type { Live, Statistics } from "../lib/status";

export const KEPT_SAMPLES = 180;
export const TIERS = ["vram", "pcie", "cpu"] as const;

export interface Sample {
  time: number; // seconds on the engine's clock
  replyRate: number; // tokens a second
  promptRate: number;
  busy: number; // share of the time that the engine worked, 0 to 1
  streams: number;
  longestGap: number; // ms, of the running streams
  tiers: Record<(typeof TIERS)[number], number>; // rows of experts a second
  hitRate: number | null; // share of rows that found their expert in VRAM; null without rows
  acceptance: number | null; // share of drafts accepted; null without drafts
}

export interface History {
  last: Statistics | null;
  samples: Sample[];
}

export const emptyHistory: History = { last: null, samples: [] };

/** The history with one more event; counters that fell belong to an engine that started again. */
export function withEvent(history: History, event: Live): History {
  const now = event.statistics;
  if (now === null) return history;
  const last = history.last;
  if (last === null || now.seconds < last.seconds || now.reply_tokens < last.reply_tokens) {
    return { last: now, samples: history.samples };
  }
  const passed = now.seconds - last.seconds;
  if (passed <= 0) return history;
  const samples = [...history.samples, sampleOf(last, now, passed)].slice(-KEPT_SAMPLES);
  return { last: now, samples };
}

function sampleOf(last: Statistics, now: Statistics, passed: number): Sample {
  const grown = (name: (typeof TIERS)[number]) => Math.max(0, (now.experts[name] ?? 0) - (last.experts[name] ?? 0));
  const tiers = { vram: grown("vram"), pcie: grown("pcie"), cpu: grown("cpu") };
  const rows = tiers.vram + tiers.pcie + tiers.cpu;
  const drafted = now.drafted_tokens - last.drafted_tokens;
  const running = now.slots.filter((slot) => slot.phase === "decoding");
  return {
    time: now.seconds,
    replyRate: (now.reply_tokens - last.reply_tokens) / passed,
    promptRate: (now.prompt_tokens - last.prompt_tokens) / passed,
    busy: Math.min(1, (now.busy_seconds - last.busy_seconds) / passed),
    streams: running.length,
    longestGap: Math.max(0, ...running.map((slot) => slot.longest_gap_ms)),
    tiers: { vram: tiers.vram / passed, pcie: tiers.pcie / passed, cpu: tiers.cpu / passed },
    hitRate: rows > 0 ? tiers.vram / rows : null,
    acceptance: drafted > 0 ? (now.accepted_drafts - last.accepted_drafts) / drafted : null,
  };
}
