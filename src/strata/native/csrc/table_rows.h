// Rows of tables that stay in their files: what a window asks for is read, packed as in memory and decoded as there.
// Knows files, pieces and storage codes; knows no door, no flag and no window.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "packing/tiles.h"
#include "strata_native.h"

namespace strata {

// Consecutive rows of a table, one after another in a file.
struct TablePiece {
    std::string name;  // the file's, as messages have it
    int file;
    int64_t begin;      // the first row's first byte
    int64_t first_row;  // in the table
    const float *scales;
    StrataFileStamp opened;
};

struct FileTable {
    StrataMatrix form;  // one tile in its storage code, without arrays
    const packing::PackFormat *format;  // null: FP8, rows of bytes beside the pieces' scales
    int64_t row_bytes, rows;
    int32_t scale_rows;
    std::vector<TablePiece> pieces;

    const TablePiece &piece_of(int64_t row) const;
};

// One row that a request wants, and which row of the answer it becomes.
struct WantedRow {
    int32_t row, place;
};

struct TableRows {
    std::vector<FileTable> tables;
    std::vector<std::vector<uint8_t>> rooms;  // of each thread: some rows as they lie in a file
    std::vector<WantedRow> wanted;            // kept from request to request
    std::atomic<uint64_t> waited{0};          // rows that came and that the system had not in memory, counted up
};

// Copies the descriptions. Tables of other forms than the library packs, and files that are too short, are refused.
int32_t open_tables(const StrataFileTable *tables, int32_t count, int threads, TableRows &to);

// Answers a request: entries are (row of the table, place), of a row below 0 nobody wants anything. Ends early, with an
// answer that means nothing, where `stopping` becomes true.
int32_t read_table_rows(StrataPool *readers, TableRows &tables, const StrataMailbox &box,
                        const std::atomic<bool> &stopping);

}  // namespace strata
