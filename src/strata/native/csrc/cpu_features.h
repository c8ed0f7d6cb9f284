// What is known of the processor beyond its instruction sets. Knows no kernel.
#pragma once

namespace strata {

// Whether a fast decoder's codes are best left to the hardware. A Zen 4 core that multiplies tiles in order with one row
// gets 29 GB/s of 4-bit codes, and 21 to 24 when lines are asked for as well; in lists of experts 4-bit codes are alike
// and 8-bit ones get 26 against 20. Slower decoders (AVX2, several rows) gain up to a fifth there by asking, and a Xeon
// loses a quarter without.
bool hardware_reads_ahead();

}  // namespace strata
