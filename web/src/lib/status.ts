// What the server says about itself: GET /strata/status once, then GET /strata/events about every second.

export interface SlotView {
  id: number;
  phase: "idle" | "waiting" | "reading" | "decoding";
  prompt_tokens: number;
  read_tokens: number;
  reply_tokens: number;
  kept_tokens: number;
  longest_gap_ms: number;
}

/** Counters since the engine started, and its state now. */
export interface Statistics {
  seconds: number;
  busy_seconds: number;
  prompt_tokens: number;
  cached_tokens: number;
  reply_tokens: number;
  windows: number;
  drafted_tokens: number;
  accepted_drafts: number;
  waiting: number;
  slots: SlotView[];
  experts: Record<string, number>; // rows computed by vram, pcie, cpu
  experts_read: Record<string, number>; // from the model's file: experts, bytes, ns; empty: none stay there
  memory: Record<string, number>; // bytes by use
}

/** The processor's share in use and bytes of main memory; `engine` bytes belong to the engine's process. */
export interface Machine {
  cpu_percent: number;
  ram_used: number;
  ram_total: number;
  engine: number;
  gpus: { name: string; busy_percent: number; memory_used: number; memory_total: number }[];
}

/** What changes: every message of /strata/events. */
export interface Live {
  phase: "loading" | "ready" | "restarting" | "failed" | "draining" | "stopped";
  sentence: string;
  loading: { stage: string; done: number; total: number };
  statistics: Statistics | null;
  machine: Machine | null;
}

export interface Model {
  name: string;
  family: string;
  context: number;
  trained_context: number;
  parameters: number;
  slots: number;
  notices: string[];
}

/** Everything: GET /strata/status. */
export interface Status extends Live {
  version: string;
  model: Model | null; // null until it is loaded
  memory_plan: { weights: number; slot: number; slots: number; states: number; machine: number } | null;
  addresses: string[];
  settings: Record<string, Record<string, string | number | boolean | null>>;
}
