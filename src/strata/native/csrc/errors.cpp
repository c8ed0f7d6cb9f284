// The last failure's sentence of every thread. Knows no function that fails.
#include "errors.h"

#include <cstdarg>
#include <cstdio>

namespace strata {
namespace {

thread_local char last_sentence[256] = "";

}  // namespace

int32_t fail(int32_t code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_sentence, sizeof last_sentence, format, arguments);
    va_end(arguments);
    return code;
}

}  // namespace strata

const char *strata_last_error() { return strata::last_sentence; }
