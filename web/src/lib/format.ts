// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value: number): string => whole.format(value);

/** Three figures at most: 0.12, 4.5, 67, 1,234. */
export function rate(value: number): string {
  if (!Number.isFinite(value)) return "-";
  if (value >= 100) return whole.format(value);
  return value.toFixed(value >= 10 ? 1 : 2);
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(value) : value.toFixed(value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function seconds(value: number): string {
  if (value < 1) return `${whole.format(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${whole.format(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
