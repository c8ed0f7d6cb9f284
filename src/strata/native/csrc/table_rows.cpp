// See table_rows.h. Single rows of a large file: what the system has in memory is copied, all the rest is asked for
// before any of it is waited for, so that a disk that serves many reads at once does so.
#include "table_rows.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "errors.h"
#include "file_stamp.h"
#include "matrix.h"
#include "mixers/table.h"
#include "pool.h"

namespace strata {
namespace {

constexpr int kAtOnce = kTileRows;  // rows of a table that one thread reads side by side: those of a token
constexpr int kEnded = -2, kRefused = -3;  // of `Failure::what`, beside kFileChanged and the system's numbers

// The first entry that could not be had, and why: 0 while there is none.
class Failure {
public:
    int what = 0;
    int32_t row = 0;
    const TablePiece *piece = nullptr;

    void note(int64_t entry, int why, int32_t of_row, const TablePiece &in) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (what && entry_ <= entry) return;
        entry_ = entry, what = why, row = of_row, piece = &in;
    }

private:
    std::mutex mutex_;
    int64_t entry_ = 0;
};

// Whether the whole row was in memory; if not, the disk begins to read it.
bool copy_cached(const TablePiece &piece, int64_t at, uint8_t *to, int64_t size) {
#ifdef RWF_NOWAIT
    const struct iovec room = {to, static_cast<size_t>(size)};
    if (preadv2(piece.file, &room, 1, at, RWF_NOWAIT) == size) return true;
#endif
    posix_fadvise(piece.file, at, size, POSIX_FADV_WILLNEED);
    return false;
}

// 0, or why not.
int wait_for_row(const TablePiece &piece, int64_t at, uint8_t *to, int64_t size) {
    while (size > 0) {
        const ssize_t found = pread(piece.file, to, static_cast<size_t>(size), at);
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) return found < 0 ? errno : kEnded;
        to += found, at += found, size -= found;
    }
    return 0;
}

// FP8 has no blocks: bytes beside the scales of whole blocks of rows, which lie in memory. False: a value is no number.
bool pack_fp8_row(const FileTable &table, const TablePiece &piece, int64_t row, const uint8_t *bytes, int in_tile,
                  uint8_t *codes, float *scales) {
    bool is_good = true;
    for (int32_t column = 0; column < table.form.columns; ++column) {
        is_good &= (bytes[column] & 0x7F) != 0x7F;
        codes[column * kTileRows + in_tile] = bytes[column];
    }
    const int64_t subs = sub_blocks_of(table.form);
    const float *of_row = piece.scales + (row - piece.first_row) / table.scale_rows * subs;
    for (int64_t sub = 0; sub < subs; ++sub) scales[sub * kTileRows + in_tile] = of_row[sub];
    return is_good;
}

// A thread's room: the rows of a tile as they lie in a file, behind them the tile's arrays.
struct Room {
    uint8_t *bytes;
    StrataMatrix tile;
    packing::TilePlace place;

    Room(const FileTable &table, uint8_t *memory) : bytes(memory), tile(table.form) {
        const ArrayBytes sizes = array_bytes(table.form);
        uint8_t *next = memory + round_up(table.row_bytes * kAtOnce);
        uint8_t *arrays[5];
        for (int i = 0; i < 5; ++i) {
            arrays[i] = sizes.of[i] ? next : nullptr;
            next += round_up(sizes.of[i]);
        }
        place = {arrays[0], arrays[1], arrays[2], arrays[3], arrays[4]};
        tile.codes = arrays[0], tile.scales = arrays[1], tile.super_scales = arrays[2];
        tile.mins = arrays[3], tile.super_mins = arrays[4];
    }

    static int64_t round_up(int64_t size) { return (size + 63) / 64 * 64; }
    static int64_t size(const FileTable &table) {
        int64_t bytes = 64 + round_up(table.row_bytes * kAtOnce);  // 64: to begin at a multiple
        for (const int64_t each : array_bytes(table.form).of) bytes += round_up(each);
        return bytes;
    }
};

// What one item of a request needs: entries [first, first + count).
struct Batch {
    const FileTable &table;
    const WantedRow *wanted;
    int64_t first;
    int count;

    const TablePiece &piece(int i) const { return table.piece_of(wanted[i].row); }
    int64_t at(int i) const { return piece(i).begin + (wanted[i].row - piece(i).first_row) * table.row_bytes; }
};

// True if all rows are there, as the files held them when the model was loaded.
bool read_batch(const Batch &batch, uint8_t *bytes, std::atomic<uint64_t> &waited, Failure &failure) {
    const int64_t size = batch.table.row_bytes;
    bool is_here[kAtOnce];
    for (int i = 0; i < batch.count; ++i) is_here[i] = copy_cached(batch.piece(i), batch.at(i), bytes + i * size, size);
    for (int i = 0; i < batch.count; ++i) {
        const TablePiece &piece = batch.piece(i);
        if (!is_here[i]) {
            if (const int why = wait_for_row(piece, batch.at(i), bytes + i * size, size)) {
                failure.note(batch.first + i, why, batch.wanted[i].row, piece);
                return false;
            }
            waited.fetch_add(1, std::memory_order_relaxed);
        }
        if (i + 1 < batch.count && &batch.piece(i + 1) == &piece) continue;
        if (const int why = find_change(piece.file, piece.opened)) {  // behind the reading: what was read was there
            failure.note(batch.first + i, why, batch.wanted[i].row, piece);
            return false;
        }
    }
    return true;
}

// The rows [first, first + count) of a batch as the first ones of the tile. False: one of them is not used.
bool pack_rows(const Batch &batch, const Room &room, int first, int count) {
    const FileTable &table = batch.table;
    const uint8_t *bytes = room.bytes + first * table.row_bytes;
    if (table.format) return table.format->pack(bytes, table.row_bytes, count, table.form.columns, room.place);
    bool is_good = true;
    for (int i = 0; i < count; ++i)
        is_good &= pack_fp8_row(table, batch.piece(first + i), batch.wanted[first + i].row, bytes + i * table.row_bytes,
                                i, room.place.codes, reinterpret_cast<float *>(room.place.scales));
    return is_good;
}

void note_refused(const Batch &batch, const Room &room, Failure &failure) {
    int i = 0;
    while (i + 1 < batch.count && pack_rows(batch, room, i, 1)) ++i;
    failure.note(batch.first + i, kRefused, batch.wanted[i].row, batch.piece(i));
}

int32_t take_wanted(TableRows &tables, const StrataMailbox &box, int32_t &table) {
    table = box.header[0];
    const int32_t rows = box.header[1], entries = box.header[2];
    if (table < 0 || table >= static_cast<int32_t>(tables.tables.size()) || rows < 0 || rows > box.max_rows ||
        entries < 0 || entries > box.max_entries)
        return fail(STRATA_INVALID, "a request for table %d, %d rows, %d entries", table, rows, entries);
    tables.wanted.clear();
    for (int32_t i = 0; i < entries; ++i) {
        const WantedRow wanted = {box.entries[2 * i], box.entries[2 * i + 1]};
        if (wanted.row < 0) continue;
        if (wanted.row >= tables.tables[static_cast<size_t>(table)].rows || wanted.place < 0 ||
            wanted.place >= rows * box.ranks)
            return fail(STRATA_INVALID, "row %d of the table for place %d of %d", wanted.row, wanted.place,
                        rows * box.ranks);
        tables.wanted.push_back(wanted);
    }
    return STRATA_OK;
}

int32_t tell(const Failure &failure) {
    const char *name = failure.piece->name.c_str();
    switch (failure.what) {
        case kEnded: return fail(STRATA_UNREADABLE, "%s ends before row %d: it was shortened", name, failure.row);
        case kFileChanged:
            return fail(STRATA_UNREADABLE, "%s has changed since the model was opened: start again", name);
        case kRefused:
            return fail(STRATA_UNREADABLE,
                        "row %d of the table in %s holds a value or a scale that is no number, or one that needs the "
                        "table in memory", failure.row, name);
        default:
            return fail(STRATA_UNREADABLE, "row %d cannot be read from %s: %s", failure.row, name,
                        std::strerror(failure.what));
    }
}

int32_t open_piece(const StrataTablePiece &from, int64_t row_bytes, int64_t first_row, FileTable &to) {
    if (!from.name || from.rows < 1 || from.begin < 0 || (!to.format && !from.scales))
        return fail(STRATA_INVALID, "a piece of a table of %d rows at byte %lld", from.rows,
                    static_cast<long long>(from.begin));
    if (const int why = find_change(from.file, from.opened))
        return why == kFileChanged
                   ? fail(STRATA_UNREADABLE, "%s has changed since the model was opened: start again", from.name)
                   : fail(STRATA_UNREADABLE, "%s cannot be read: %s", from.name, std::strerror(why));
    if (from.opened.size < from.begin + row_bytes * from.rows)
        return fail(STRATA_UNREADABLE, "%s ends inside the table: it was shortened", from.name);
    posix_fadvise(from.file, 0, 0, POSIX_FADV_RANDOM);  // no reading ahead of single rows
    to.pieces.push_back({from.name, from.file, from.begin, first_row, from.scales, from.opened});
    return STRATA_OK;
}

int32_t open_table(const StrataFileTable &from, FileTable &to) {
    to = {from.form, packing::find_format(from.type), 0, 0, from.scale_rows, {}};
    to.form.rows = kTileRows;
    if (const int32_t wrong = check_form(to.form)) return wrong;
    const bool is_fp8 = from.form.code == STRATA_FP8;
    if (is_fp8 ? from.scale_rows < 1 : !to.format)
        return fail(STRATA_UNSUPPORTED, "rows of ggml's type %d are not read from a file here", from.type);
    if (is_fp8) to.format = nullptr;
    to.row_bytes = is_fp8 ? from.form.columns : to.format->row_bytes(from.form.columns);
    for (int32_t i = 0; i < from.piece_count; ++i) {
        if (const int32_t wrong = open_piece(from.pieces[i], to.row_bytes, to.rows, to)) return wrong;
        to.rows += from.pieces[i].rows;
    }
    if (to.rows < 1 || to.rows > INT32_MAX)
        return fail(STRATA_INVALID, "a table of %lld rows", static_cast<long long>(to.rows));
    return STRATA_OK;
}

}  // namespace

const TablePiece &FileTable::piece_of(int64_t row) const {
    const auto lies_before = [](int64_t wanted, const TablePiece &piece) { return wanted < piece.first_row; };
    const auto behind = std::upper_bound(pieces.begin(), pieces.end(), row, lies_before);
    return *(behind - 1);
}

int32_t open_tables(const StrataFileTable *tables, int32_t count, int threads, TableRows &to) {
    to.tables.resize(static_cast<size_t>(count));
    int64_t room = 0;
    for (int32_t i = 0; i < count; ++i) {
        FileTable &table = to.tables[static_cast<size_t>(i)];
        if (const int32_t wrong = open_table(tables[i], table)) return wrong;
        room = std::max(room, Room::size(table));
    }
    to.rooms.assign(static_cast<size_t>(threads), std::vector<uint8_t>(static_cast<size_t>(room)));
    return STRATA_OK;
}

int32_t read_table_rows(StrataPool *readers, TableRows &tables, const StrataMailbox &box,
                        const std::atomic<bool> &stopping) {
    int32_t index;
    if (const int32_t wrong = take_wanted(tables, box, index)) return wrong;
    const FileTable &table = tables.tables[static_cast<size_t>(index)];
    const auto count = static_cast<int64_t>(tables.wanted.size());
    Failure failure;
    for_items(readers, (count + kAtOnce - 1) / kAtOnce, [&](int64_t item, int thread) {
        if (stopping.load(std::memory_order_relaxed)) return;
        uint8_t *memory = tables.rooms[static_cast<size_t>(thread)].data();
        const Room room(table, memory + (64 - reinterpret_cast<uintptr_t>(memory) % 64) % 64);
        const int64_t first = item * kAtOnce;
        const Batch batch = {table, tables.wanted.data() + first, first,
                             static_cast<int>(std::min<int64_t>(kAtOnce, count - first))};
        if (!read_batch(batch, room.bytes, tables.waited, failure)) return;
        if (!pack_rows(batch, room, 0, batch.count)) return note_refused(batch, room, failure);
        for (int i = 0; i < batch.count; ++i)
            matrix_row(room.tile, i, box.out + int64_t{batch.wanted[i].place} * box.hidden);
    });
    return failure.what ? tell(failure) : STRATA_OK;
}

}  // namespace strata
