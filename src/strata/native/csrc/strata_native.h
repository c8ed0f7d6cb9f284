// The C ABI of the native library: every function that Python calls is declared here (mixers: mixers/mixers.h).
// Knows no Python and no torch; sizes are in bytes, strides in elements, pointers are owned by the caller.
#pragma once

#include <cstdint>

#define STRATA_API extern "C" __attribute__((visibility("default")))

// Rises with every change that an older caller would not survive.
STRATA_API int32_t strata_native_abi_version();

// ---- errors: functions return 0 or one of these; the sentence belongs to the calling thread ----
enum StrataError : int32_t {
    STRATA_OK = 0,
    STRATA_INVALID = 1,      // an argument contradicts the contract; the message names it
    STRATA_UNSUPPORTED = 2,  // this CPU or this build cannot do it
    STRATA_NO_MEMORY = 3,
    STRATA_STOPPED = 4,  // the service was stopped before it answered
    STRATA_UNREADABLE = 5,  // a model's file gives no bytes, or is not what it was, or holds what has no packed form
};
STRATA_API const char *strata_last_error();

// ---- instruction sets ----
// What this CPU can do and the system lets us use, as bits (see cpu_features.cpp).
STRATA_API uint64_t strata_cpu_features();

enum StrataIsa : int32_t {
    STRATA_ISA_BEST = -1,
    STRATA_ISA_SCALAR = 0,
    STRATA_ISA_AVX2 = 1,
    STRATA_ISA_AVX_VNNI = 2,
    STRATA_ISA_AVX512_VNNI = 3,
};
// The library's only global choice. Results are the same bits whatever is chosen.
STRATA_API int32_t strata_force_isa(int32_t isa);
STRATA_API int32_t strata_current_isa();

// ---- thread pool ----
typedef struct StrataPool StrataPool;

// threads: all that work, the caller's among them (1 = the caller alone). pinned: every worker stays on a core of the
// process's affinity mask, the doorbell service's thread too if one is left for others then; the caller is never
// pinned. spin_us: how long an idle worker spins before it parks.
STRATA_API int32_t strata_pool_create(int32_t threads, int32_t pinned, int32_t spin_us, StrataPool **pool);
STRATA_API void strata_pool_destroy(StrataPool *pool);
STRATA_API int32_t strata_pool_threads(const StrataPool *pool);
// While held (calls nest) idle workers spin and do not park: around a window, whose gaps are shorter than a wake-up.
// Whoever stays on the core of the thread that holds moves to a free one.
STRATA_API void strata_pool_hold(StrataPool *pool);
STRATA_API void strata_pool_release(StrataPool *pool);

// ---- packed matrices: docs/storage-codes.md ----
enum StrataCode : int32_t {
    STRATA_CODE2 = 2,
    STRATA_CODE4 = 4,
    STRATA_CODE8 = 8,
    STRATA_F32 = 100,
    STRATA_BF16 = 101,
    STRATA_F16 = 102,
    STRATA_FP8 = 103,  // float8_e4m3fn with float32 scales: scale_kind 4
};
enum StrataScaleKind : int32_t {
    STRATA_SCALE_F16,
    STRATA_SCALE_E8M0,
    STRATA_SCALE_UE4M3,
    STRATA_SCALE_SUPER,
    STRATA_SCALE_F32,
};
enum StrataMinKind : int32_t { STRATA_MIN_NONE, STRATA_MIN_F16, STRATA_MIN_SUPER };

struct StrataMatrix {
    int32_t code, scale_kind, min_kind, sub_block;
    int32_t rows, columns;
    int8_t table[16];
    float post_scale;
    int32_t reserved;
    const void *codes, *scales, *super_scales, *mins, *super_mins;  // null where the kind has none
};

// Refuses what the contract does not allow. Every function below checks its matrices this way.
STRATA_API int32_t strata_matrix_check(const StrataMatrix *matrix);

// y[i, r] = matrix row r times x[i]; x float32 [count, columns], y float32 [count, rows].
STRATA_API int32_t strata_matrix_rows(StrataPool *pool, const StrataMatrix *matrix, const float *x, int32_t count,
                                      int64_t x_stride, float *y, int64_t y_stride);

// Several matrices of the same columns times the same x: activations are quantized once, one job for all threads.
struct StrataProduct {
    const StrataMatrix *matrix;
    float *y;
    int64_t y_stride;
};
STRATA_API int32_t strata_matrices_rows(StrataPool *pool, const StrataProduct *products, int32_t product_count,
                                        const float *x, int32_t count, int64_t x_stride);

// One row of activations as the packed codes see it: q int8 [columns], d float32 [columns / 32].
STRATA_API int32_t strata_quantize(const float *x, int32_t columns, int8_t *q, float *d);

// ---- packing: blocks as a GGUF file holds them, into the tiles of packed matrices ----
// `count` equal matrices, matrix i at place + i * place_stride, its arrays at their pointers + i * array_stride (the
// experts of a layer). Rows that a last tile lacks become zero.
struct StrataPacking {
    int32_t type;  // ggml's number
    int32_t rows, columns, count;
    int32_t file;      // a descriptor from which the blocks are read at `place`, or -1: they lie at the address `place`
    int32_t refused;   // written: the lowest matrix that holds what this road does not pack (a scale that is not
                       // finite, one that needs another storage); -1: none. Other matrices are packed all the same.
    int32_t read_error;  // written: 0, or errno of a read (ENODATA: the file ends before)
    int32_t reserved;
    int64_t place, place_stride, array_stride;  // bytes
    void *codes, *scales, *super_scales, *mins, *super_mins;  // null where the format has none
};
STRATA_API int32_t strata_packs(int32_t type);  // 1 for a type that strata_pack knows, else 0
STRATA_API int32_t strata_pack(StrataPool *pool, StrataPacking *jobs, int32_t job_count);

// ---- experts ----
// Where the arrays lie in a blob. The caller fills the three matrices (their pointers and post scales are not read);
// strata_expert_layout fills the rest.
struct StrataExpertLayout {
    StrataMatrix gate, up, down;  // gate and up [intermediate, hidden], down [hidden, intermediate]
    int64_t offsets[3][5];        // of gate, up, down: codes, scales, super scales, mins, super mins; -1 = none
    int64_t post_scales_offset;   // three float32
    int64_t blob_bytes;
};
STRATA_API int32_t strata_expert_layout(StrataExpertLayout *layout);

struct StrataExpertJob {
    const void *blob;      // at a multiple of 64 bytes
    const int32_t *rows;   // [row_count] rows of x
    const int32_t *slots;  // [row_count] rows of out: row * ranks + rank
    int32_t row_count;
    int32_t reserved;
};
// out[slot] = down(silu(gate x) * (up x)) for every (expert, row); router weights are not applied.
STRATA_API int32_t strata_experts(StrataPool *pool, const StrataExpertLayout *layout, const StrataExpertJob *jobs,
                                  int32_t job_count, const float *x, int64_t x_stride, int32_t x_rows, float *out,
                                  int64_t out_stride);

// out[row] = sum over ranks of router_weights[row, rank] * expert_rows[row, rank] by fma in rank order from +0, then
// + shared[row], or fma(shared_weights[row], shared[row]) if there are any. computed (uint8 [rows, ranks]), shared and
// shared_weights may be null; rows that were not computed are never read.
STRATA_API int32_t strata_combine(StrataPool *pool, int32_t rows, int32_t ranks, int32_t hidden,
                                  const float *expert_rows, const float *router_weights, const uint8_t *computed,
                                  const float *shared, int64_t shared_stride, const float *shared_weights,
                                  float *out, int64_t out_stride);

// h[i] = (gate[i] / (1 + exp(-gate[i]))) * up[i], the exp of the contract.
STRATA_API int32_t strata_silu_mul(const float *gate, const float *up, float *h, int64_t count);

// ---- doorbell service: answers windows that run on a GPU, without a call from the host ----
typedef struct StrataDoorbell StrataDoorbell;

// The experts of one layer as the service finds them.
struct StrataLayerExperts {
    const StrataExpertLayout *layout;
    const void *const *blobs;  // [expert_count], each at a multiple of 64; null: not in RAM, asking for it is an error
    int32_t expert_count;
    int32_t reserved;
};

// One window in flight of one stage. All pointers are shared memory (pinned where a GPU rings).
// Door and done only rise. A request: write everything else, then door = its last number + 1 (release).
// The answer: rows and status, then done = that number (release), then gate = 1 where there is one. After a stop both are
// 0x7fffffff, done first: a window that still waited goes on with stale rows, and the host, which finds that number,
// fails it. A window sets its gate to 0 before it asks and opens it itself if done turns out to be raised behind that.
struct StrataMailbox {
    uint32_t *door;         // written by the window
    uint32_t *done;         // written by the service
    uint32_t *gate;         // written by both, or null: who waits for a value that is always the same waits for 1
    int32_t *status;        // written by the service before done: 0 or a StrataError
    const int32_t *header;  // layer, rows, entries
    const int32_t *entries;  // [entries][2]: expert, slot = row * ranks + rank
    const float *x;          // [rows, hidden] float32, or null where the window quantizes itself:
    const int8_t *q;         // [rows, hidden]
    const float *d;          // [rows, hidden / 32]
    float *out;              // [rows * ranks, hidden]
    int32_t max_rows, max_entries;
    int32_t ranks, hidden;
};
// limit_ms: a request that has waited for so long ends the service as a stop does; its threads may be stuck then.
STRATA_API int32_t strata_doorbell_create(StrataPool *pool, const StrataLayerExperts *layers, int32_t layer_count,
                                          const StrataMailbox *mailboxes, int32_t mailbox_count, int32_t limit_ms,
                                          StrataDoorbell **service);
// Around every window: while one is in flight the coordinator polls, otherwise it sleeps. A request of a window that has
// ended is never answered: the next begin counts it as answered.
STRATA_API int32_t strata_doorbell_begin(StrataDoorbell *service, int32_t mailbox);
STRATA_API int32_t strata_doorbell_end(StrataDoorbell *service, int32_t mailbox);
// Both flags of a mailbox back to 0, between windows only.
STRATA_API int32_t strata_doorbell_rewind(StrataDoorbell *service, int32_t mailbox);
// Where an expert's blob lies from now on (null: nowhere); also while windows are in flight. A request that is answered
// meanwhile reads the old or the new blob: both hold the expert's bytes until no window that may ask is left.
STRATA_API int32_t strata_doorbell_place(StrataDoorbell *service, int32_t layer, int32_t expert, const void *blob);

// Summed up since the service was made.
struct StrataDoorbellCounters {
    uint64_t requests, experts, bytes;  // distinct experts of each request, and the bytes of their blobs
    uint64_t busy_ns;                   // from reading requests to raising their done flags
};
STRATA_API int32_t strata_doorbell_counters(const StrataDoorbell *service, StrataDoorbellCounters *counters);

#define STRATA_SENTENCE_BYTES 200
// A look at a mailbox, at any moment.
struct StrataDoorbellState {
    uint32_t door, done, answered;
    int32_t layer, rows, entries;    // as the header has them: of the last request, if door was rung
    int32_t is_in_flight, is_late;   // the latter, of the whole service: a request waited longer than its limit
    uint64_t failures;               // requests of this mailbox with an error for an answer, or late; of the last one:
    int32_t failed_layer, reserved;
    char failure[STRATA_SENTENCE_BYTES];
};
STRATA_API int32_t strata_doorbell_state(StrataDoorbell *service, int32_t mailbox, StrataDoorbellState *state);

// Ends the threads and raises every done flag to its maximum; may come at any moment, and twice. STRATA_STOPPED: the
// flags are raised, and a thread that is stuck in a request was left behind after some seconds.
STRATA_API int32_t strata_doorbell_stop(StrataDoorbell *service);
// A stop, and the end of the handle. STRATA_STOPPED: nothing was freed, and pool, mailboxes and blobs must stay.
STRATA_API int32_t strata_doorbell_destroy(StrataDoorbell *service);

// ---- tables in files: single rows that windows ask for, on the doorbell's mailboxes ----
// Consecutive rows of a table, one after another in a file.
// A file as it was when the model was opened: its numbers by fstat. Another one, or other bytes, are not the model's.
struct StrataFileStamp {
    int64_t device, inode, size, changed_ns;
};

struct StrataTablePiece {
    const char *name;  // of the file, as messages have it
    StrataFileStamp opened;
    int64_t begin;     // of the first row
    int32_t file;      // a descriptor of its own, open as long as the service is
    int32_t rows;
    const float *scales;  // of FP8: [ceil(rows / scale_rows), ceil(columns / sub_block)], as long as the service is
};
struct StrataFileTable {
    StrataMatrix form;  // how a row is decoded; rows, arrays and their pointers are not read
    int32_t type;       // ggml's number of what the file holds, one that strata_pack knows; FP8 has none
    int32_t scale_rows;  // of FP8: rows that share a scale
    int32_t piece_count;
    int32_t reserved;
    const StrataTablePiece *pieces;
};
// A doorbell service (begin, end, state, stop ... as above) with a mailbox for each table. Of the header the first number
// is the table's, entries are (row of the table or below 0: none, place = row * ranks + rank), out is float32
// [rows * ranks, columns]. x, q and d are not read. A file that has changed since, or cannot be read, is an error.
STRATA_API int32_t strata_tables_create(StrataPool *readers, const StrataFileTable *tables,
                                        const StrataMailbox *mailboxes, int32_t count, int32_t limit_ms,
                                        StrataDoorbell **service);
// Rows that were asked for so far and that the system did not have in memory.
STRATA_API int32_t strata_tables_waited(const StrataDoorbell *service, uint64_t *rows);

// ---- experts in the model's files ----
// The descriptor stays the caller's.
struct StrataModelFile {
    const char *name;  // in messages
    int32_t descriptor;
    int32_t reserved;
    StrataFileStamp opened;
};

// One matrix of every expert of a layer, as blocks of a format that strata_packs knows: expert e's from begin + e * stride.
struct StrataFilePart {
    int32_t type, file;
    int64_t begin, stride;
};

struct StrataFileLayer {
    const StrataExpertLayout *layout;
    const float *factors;  // [expert_count, 3]: post scales of gate, up and down
    StrataFilePart parts[3];
    int32_t expert_count;
    int32_t reserved;
};

// Experts that are read when they are asked for, into `memory` that is the cache's as long as it lives; those used last
// stay there. Files and descriptions are copied. Used by one thread at a time, but for its counters.
typedef struct StrataReadCache StrataReadCache;
STRATA_API int32_t strata_read_cache_create(const StrataModelFile *files, int32_t file_count,
                                            const StrataFileLayer *layers, int32_t layer_count, void *memory,
                                            int64_t bytes, StrataReadCache **cache);
STRATA_API void strata_read_cache_destroy(StrataReadCache *cache);
// Experts of a layer, packed to blobs of the caller's. STRATA_UNREADABLE: nothing of them may be used.
STRATA_API int32_t strata_read_cache_fill(StrataReadCache *cache, StrataPool *pool, int32_t layer,
                                          const int32_t *experts, void *const *blobs, int32_t count);
// What was read because somebody asked, summed up; `bytes` as they lie in the files.
struct StrataReadCounters {
    uint64_t experts, bytes, ns;
};
STRATA_API int32_t strata_read_cache_counters(const StrataReadCache *cache, StrataReadCounters *counters);
// From now on the service reads what has no blob. Before its first window; the cache must outlive the service. The time
// of reading does not count as the service's, and a request is not late as long as experts arrive.
STRATA_API int32_t strata_doorbell_read(StrataDoorbell *service, StrataReadCache *cache);

// ---- measuring ----
// Seconds that the pool takes to read the bytes once, with nothing else done to them.
STRATA_API int32_t strata_read_memory(StrataPool *pool, const void *bytes, int64_t size, double *seconds);
// Multiply-adds a second of all threads together in the integer dot product of the chosen instruction set, from registers:
// what products of packed codes cannot be faster than.
STRATA_API int32_t strata_multiply_rate(StrataPool *pool, int64_t rounds, double *per_second);
