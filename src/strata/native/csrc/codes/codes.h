// The list of packed codes: a new one is a file beside this one and a line here.
// A code says how many bytes a block of 16 rows has, what one weight is (the definition), and how 4 elements of every
// row become a vector's bytes.
// `Ops` is an instruction set (simd/ops_*.h); a code knows none of them.
#pragma once

#include "codes/code2.h"
#include "codes/code4.h"
#include "codes/code8.h"

namespace {

// Calls use(Code{}) with the code's type; false for a code that is not in the list.
template <class Use>
bool with_code(int32_t code, Use &&use) {
    if (code == Code2::kNumber) return use(Code2{}), true;
    if (code == Code4::kNumber) return use(Code4{}), true;
    if (code == Code8::kNumber) return use(Code8{}), true;
    return false;
}

}  // namespace
