// The published formats that are packed here, by ggml's number. Knows only which there are.
#include "packing/tiles.h"

namespace strata::packing {
namespace {

constexpr PackFormat kFormats[] = {
    float_format<uint32_t, 0x7F800000>(0),  // F32
    float_format<uint16_t, 0x7C00>(1),      // F16
    float_format<uint16_t, 0x7F80>(30),     // BF16
    blocks_format<Q2_0>(),
    blocks_format<Q4_0>(),
    blocks_format<Q4_1>(),
    blocks_format<Q5_0>(),
    blocks_format<Q5_1>(),
    blocks_format<Q8_0>(),
    blocks_format<Q2_K>(),
    blocks_format<Q3_K>(),
    blocks_format<Q4_K>(),
    blocks_format<Q5_K>(),
    blocks_format<Q6_K>(),
    blocks_format<IQ4_NL>(),
    blocks_format<IQ4_XS>(),
    blocks_format<MXFP4>(),
    blocks_format<NVFP4>(),
};

}  // namespace

const PackFormat *find_format(int32_t type) {
    for (const PackFormat &format : kFormats)
        if (format.type == type) return &format;
    return nullptr;
}

}  // namespace strata::packing
