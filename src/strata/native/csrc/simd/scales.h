// Scales and mins of a run of sub-blocks of one tile, decoded to float32 [sub-block][16 rows]: exact, whatever the kind.
// Written once for every instruction set; `Ops` is one of simd/ops_*.h.
#pragma once

#include "kernels.h"

namespace {

using strata::kTileRows;

// Where a run's decoded values go: sub-blocks of 64 columns are written twice, so that every block finds its own.
struct ScaleRun {
    int64_t tile, first;  // first sub-block
    int count, copies;
};

template <class Ops, class Load>
void write_run(const ScaleRun &run, float *out, Load &&load) {
    for (int i = 0; i < run.count; ++i) {
        for (int part = 0; part < kTileRows; part += Ops::kRows) {
            const typename Ops::Float value = load(i, part);
            float *to = out + i * run.copies * kTileRows + part;
            Ops::store_float(to, value);
            if (run.copies == 2) Ops::store_float(to + kTileRows, value);
        }
    }
}

// Bytes [sub-block][16] times the half of their super block, which is decoded once. `halves` and `bytes` are the run's.
template <class Ops, class Load>
void write_supers(const ScaleRun &run, int subs_a_super, const uint16_t *halves, float *out, Load &&load) {
    ScaleRun one = {run.tile, 0, subs_a_super, run.copies};
    for (int first = 0; first < run.count; first += subs_a_super, halves += kTileRows) {
        typename Ops::Float super[kTileRows / Ops::kRows];
        for (int part = 0; part < kTileRows; part += Ops::kRows) super[part / Ops::kRows] = Ops::of_half(halves + part);
        write_run<Ops>(one, out + first * run.copies * kTileRows, [&](int i, int part) {
            return Ops::mul(super[part / Ops::kRows], load((first + i) * kTileRows + part));
        });
    }
}

template <class Ops>
void decode_scales(const StrataMatrix &m, const ScaleRun &run, float *out) {
    const int64_t subs = m.columns / m.sub_block, at = (run.tile * subs + run.first) * kTileRows;
    const auto *halves = static_cast<const uint16_t *>(m.scales) + at;
    const auto *bytes = static_cast<const uint8_t *>(m.scales) + at;
    const auto *floats = static_cast<const float *>(m.scales) + at;
    const auto *supers = static_cast<const uint16_t *>(m.super_scales);
    const int subs_a_super = 256 / m.sub_block;
    switch (m.scale_kind) {
        case STRATA_SCALE_F16:
            return write_run<Ops>(run, out, [&](int i, int p) { return Ops::of_half(halves + i * kTileRows + p); });
        case STRATA_SCALE_E8M0:
            return write_run<Ops>(run, out, [&](int i, int p) { return Ops::of_e8m0(bytes + i * kTileRows + p); });
        case STRATA_SCALE_UE4M3:
            return write_run<Ops>(run, out, [&](int i, int p) { return Ops::of_ue4m3(bytes + i * kTileRows + p); });
        case STRATA_SCALE_F32:
            return write_run<Ops>(run, out, [&](int i, int p) { return Ops::load_float(floats + i * kTileRows + p); });
        default:
            return write_supers<Ops>(run, subs_a_super, supers + at / subs_a_super, out,
                                     [&](int i) { return Ops::of_int8(bytes + i); });
    }
}

template <class Ops>
void decode_mins(const StrataMatrix &m, const ScaleRun &run, float *out) {
    const int64_t subs = m.columns / m.sub_block, at = (run.tile * subs + run.first) * kTileRows;
    const auto *halves = static_cast<const uint16_t *>(m.mins) + at;
    const auto *bytes = static_cast<const uint8_t *>(m.mins) + at;
    const auto *supers = static_cast<const uint16_t *>(m.super_mins);
    const int subs_a_super = 256 / m.sub_block;
    if (m.min_kind == STRATA_MIN_F16)
        return write_run<Ops>(run, out, [&](int i, int p) { return Ops::of_half(halves + i * kTileRows + p); });
    write_supers<Ops>(run, subs_a_super, supers + at / subs_a_super, out,
                      [&](int i) { return Ops::of_uint8(bytes + i); });
}

inline void ask_for(const void *array, int64_t first, int64_t size) {
    const char *at = static_cast<const char *>(array) + first;
    for (int64_t line = 0; line < size; line += 64) __builtin_prefetch(at + line, 0, 2);
}

inline int scale_bytes(int32_t kind) {
    static constexpr int kScaleBytes[] = {2, 1, 1, 1, 4};
    return kScaleBytes[kind];
}

inline int min_bytes(int32_t kind) { return kind == STRATA_MIN_F16 ? 2 : 1; }

// Asks for the scales and mins of a run that is decoded later; it may reach into the next tile or past the end.
inline void ask_for_scales(const StrataMatrix &m, const ScaleRun &run) {
    const int64_t first = (run.tile * (m.columns / m.sub_block) + run.first) * kTileRows, size = run.count * kTileRows;
    ask_for(m.scales, first * scale_bytes(m.scale_kind), size * scale_bytes(m.scale_kind));
    if (m.min_kind != STRATA_MIN_NONE) ask_for(m.mins, first * min_bytes(m.min_kind), size * min_bytes(m.min_kind));
}

}  // namespace
