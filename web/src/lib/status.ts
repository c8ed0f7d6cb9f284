// What the server says about itself: GET /strata/status once, then GET /strata/events about every second.

export interface SlotView {
  slot: number;
  phase: "idle" | "waiting" | "reading" | "decoding";
  request_id: number | null;
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
  memory: Record<string, number>; // bytes by use
}

export interface Machine {
  cpu_percent: number;
  ram_used: number;
  ram_total: number;
  gpus: { name: string; busy_percent: number; memory_used: number; memory_total: number }[];
}

export interface Model {
  name: string;
  family: string;
  context: number;
  parameters: number;
  weight_bytes: number;
  slots: number;
  slot_bytes: number;
  notices: string[];
}

export interface Status {
  state: "loading" | "ready" | "restarting" | "failed" | "draining";
  detail: string; // what loads, why it failed
  version: string;
  model: Model | null;
  addresses: { name: string; url: string }[];
  settings: Record<string, Record<string, string | number | boolean | null>>;
  statistics: Statistics | null;
  machine: Machine | null;
}

/** One message of /strata/events. */
export interface StatusEvent {
  state: Status["state"];
  detail: string;
  statistics: Statistics | null;
  machine: Machine | null;
}
