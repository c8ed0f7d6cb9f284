// A line or stacked chart over the last minutes.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { rate } from "../lib/format";

export interface Series {
  label: string;
  color: string; // a CSS variable's name
  values: (number | null)[];
}

interface Props {
  title: string;
  unit: string;
  times: number[];
  series: Series[];
  isStacked?: boolean;
  max?: number;
}

const HEIGHT = 150;

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const place = box.current!;
    const made = new uPlot(optionsOf(props, place), dataOf(props), place);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: HEIGHT }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(dataOf(props)), [props.times, props.series]);
  return (
    <figure class="chart">
      <figcaption>
        {props.title}
        {props.series.map((one) => (
          <span class="key" key={one.label}>
            <i class={`swatch ${one.color}`} /> {one.label} <b>{lastOf(one)}</b>
          </span>
        ))}
        <span class="unit">{props.unit}</span>
      </figcaption>
      <div ref={box} />
    </figure>
  );
}

const lastOf = (series: Series): string => {
  const last = series.values.at(-1);
  return last === undefined || last === null ? "-" : rate(last);
};

function dataOf(props: Props): uPlot.AlignedData {
  const rows = props.series.map((one) => one.values);
  const last = props.times.at(-1) ?? 0;
  const ages = props.times.map((time) => time - last);
  return [ages, ...(props.isStacked ? stacked(rows).reverse() : rows)] as uPlot.AlignedData;
}

/** Each series on top of those before it; the highest is drawn first, so that the others cover its lower part. */
function stacked(rows: (number | null)[][]): number[][] {
  const sums: number[][] = [];
  for (const row of rows) {
    const below = sums.at(-1);
    sums.push(row.map((value, index) => (value ?? 0) + (below?.[index] ?? 0)));
  }
  return sums;
}

function optionsOf(props: Props, box: HTMLElement): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, size: 44 };
  const lines = props.series.map((one) => ({
    label: one.label,
    stroke: color(one.color),
    fill: props.isStacked ? color(one.color) : undefined,
    width: 2,
    points: { show: false },
    spanGaps: false,
  }));
  return {
    width: box.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false }, y: { range: (_, __, high) => [0, props.max ?? Math.max(1, high * 1.15)] } },
    axes: [
      { ...axis, size: 22, values: (_, ticks) => ticks.map((tick) => `${Math.round(tick)} s`) },
      { ...axis, values: (_, ticks) => ticks.map((tick) => String(tick)) },
    ],
    series: [{}, ...(props.isStacked ? lines.reverse() : lines)],
  };
}
