// The table of one instruction set, from everything that is written once for all of them.
#pragma once

#include "simd/float_panels.h"
#include "simd/floats.h"
#include "simd/packed.h"
#include "simd/panels.h"
#include "simd/peak.h"
#include "simd/stream.h"

namespace {

template <class Ops>
constexpr strata::KernelSet make_kernels() {
    return {Ops::quantize,
            packed_tile<Ops>,
            packed_stream<Ops>,
            float_tile<Ops>,
            {Ops::kPanelVectors * Ops::kRows / kTileRows, Ops::kPackedGroup, Ops::kFloatGroup, Ops::kBias},
            packed_panel<Ops>,
            float_panel<Ops>,
            silu_mul<Ops>,
            add_scaled<Ops>,
            Ops::read_bytes,
            multiply_only<Ops>};
}

}  // namespace
