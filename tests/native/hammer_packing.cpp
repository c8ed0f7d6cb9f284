// Hammers the packer with random blocks of every format, ragged rows, and files that end too early: several threads
// make what one makes, and nothing outside of the arrays is touched (address sanitizer).
#include "hammer_packing.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "packing/tiles.h"
#include "strata_native.h"

namespace {

void require(bool truth, const char *what) {
    if (truth) return;
    std::fprintf(stderr, "failed: %s (last error: %s)\n", what, strata_last_error());
    std::exit(1);
}

struct Free {
    void operator()(void *at) const { std::free(at); }
};

// One array of exactly its size, so that a byte more is seen.
class Array {
public:
    explicit Array(int64_t size) : size_(size) {
        if (size) bytes_.reset(static_cast<char *>(std::aligned_alloc(64, static_cast<size_t>((size + 63) / 64 * 64))));
        if (size) std::memset(bytes_.get(), 0x55, static_cast<size_t>(size));
    }
    char *get() const { return bytes_.get(); }
    bool operator==(const Array &other) const {
        return size_ == other.size_ && (!size_ || !std::memcmp(get(), other.get(), static_cast<size_t>(size_)));
    }

private:
    int64_t size_;
    std::unique_ptr<char, Free> bytes_;
};

struct Packed {
    std::vector<Array> arrays;
    StrataPacking job{};

    // `count` matrices; the arrays of one stand a multiple of 64 bytes behind those of the one before.
    Packed(const strata::packing::PackFormat &format, int rows, int columns, int count) {
        const auto sizes = format.tile_sizes(columns);
        const int64_t tiles = (rows + 15) / 16, stride = (tiles * sizes.codes + 63) / 64 * 64;
        for (const int64_t size : {sizes.codes, sizes.scales, sizes.super_scales, sizes.mins, sizes.super_mins})
            arrays.emplace_back(size ? (count - 1) * stride + tiles * size : 0);
        job.type = format.type, job.rows = rows, job.columns = columns, job.count = count, job.file = -1;
        job.place_stride = rows * format.row_bytes(columns), job.array_stride = stride;
        job.codes = arrays[0].get(), job.scales = arrays[1].get(), job.super_scales = arrays[2].get();
        job.mins = arrays[3].get(), job.super_mins = arrays[4].get();
    }
};

void pack_one_format(const strata::packing::PackFormat &format, StrataPool *pool, StrataPool *alone, unsigned seed) {
    std::mt19937 random(seed);
    const int columns = format.block_weights * (1 + static_cast<int>(random() % 5));
    const int rows = 1 + static_cast<int>(random() % 70), count = 1 + static_cast<int>(random() % 4);
    std::vector<char> bytes(static_cast<size_t>(count * rows * format.row_bytes(columns)));
    for (char &byte : bytes) byte = static_cast<char>(random());
    std::FILE *file = std::tmpfile();
    require(file && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() && !std::fflush(file), "a file");

    Packed wanted(format, rows, columns, count), found(format, rows, columns, count), read(format, rows, columns, count);
    wanted.job.place = found.job.place = reinterpret_cast<int64_t>(bytes.data());
    read.job.file = fileno(file);
    StrataPacking both[] = {found.job, read.job};
    require(strata_pack(alone, &wanted.job, 1) == STRATA_OK && strata_pack(pool, both, 2) == STRATA_OK, "packed");
    require(found.arrays == wanted.arrays && read.arrays == wanted.arrays, "the same bytes on every road");
    require(both[0].refused == wanted.job.refused && both[1].refused == wanted.job.refused, "the same is refused");

    require(ftruncate(fileno(file), static_cast<off_t>(bytes.size() - 1)) == 0, "a shorter file");
    require(strata_pack(pool, both, 2) == STRATA_OK, "packed again");
    require(both[0].read_error == 0 && both[1].read_error == ENODATA, "the end of the file is told");
    std::fclose(file);
}

}  // namespace

void hammer_packing(int rounds) {
    StrataPool *pool = nullptr, *alone = nullptr;
    require(strata_pool_create(4, 0, 10, &pool) == STRATA_OK, "pool");
    require(strata_pool_create(1, 0, 0, &alone) == STRATA_OK, "pool");
    int formats = 0;
    for (int32_t type = 0; type < 64; ++type) {
        const auto *format = strata::packing::find_format(type);
        require(strata_packs(type) == (format != nullptr), "what is packed is known");
        if (!format) continue;
        ++formats;
        for (int round = 0; round < rounds; ++round)
            pack_one_format(*format, pool, alone, static_cast<unsigned>(1000 * type + round));
    }
    require(formats == 18, "formats");
    strata_pool_destroy(pool);
    strata_pool_destroy(alone);
}
