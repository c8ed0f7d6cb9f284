// Whether a file is still what it was when the model was opened. Knows no format.
#pragma once

#include <sys/stat.h>

#include <cerrno>

#include "strata_native.h"

namespace strata {

constexpr int kFileChanged = -1;  // beside the system's numbers

inline StrataFileStamp stamp_of(const struct stat &found) {
    return {static_cast<int64_t>(found.st_dev), static_cast<int64_t>(found.st_ino), found.st_size,
            int64_t{found.st_mtim.tv_sec} * 1000000000 + found.st_mtim.tv_nsec};
}

// 0: it is; kFileChanged; or the system's number where it does not say.
inline int find_change(int descriptor, const StrataFileStamp &opened) {
    struct stat found;
    if (fstat(descriptor, &found)) return errno;
    const StrataFileStamp now = stamp_of(found);
    const bool is_same = now.device == opened.device && now.inode == opened.inode && now.size == opened.size &&
                         now.changed_ns == opened.changed_ns;
    return is_same ? 0 : kFileChanged;
}

}  // namespace strata
