// Experts in a model's files: read and packed as they were when the model was opened, or not at all.
// Knows descriptors, places and formats; knows no cache and no request.
#pragma once

#include <string>
#include <vector>

#include "strata_native.h"

namespace strata {

struct ModelFile {
    std::string name;  // in messages
    int32_t descriptor;
    StrataFileStamp opened;
};

// The experts of one layer in the files.
struct FileLayer {
    StrataExpertLayout layout;
    StrataFilePart parts[3];  // gate, up, down
    int32_t experts;
    std::vector<float> factors;  // [experts, 3]: post scales
    std::vector<int32_t> files;  // that the parts lie in
    int64_t expert_bytes;        // of one in the files
};

class ExpertFiles {
public:
    // Takes the descriptions over once they were checked; else an error.
    int32_t open(const StrataModelFile *files, int32_t file_count, const StrataFileLayer *layers, int32_t layer_count);

    const std::vector<FileLayer> &layers() const { return layers_; }
    // The system is told that these are wanted, in the order in which they will be.
    void read_ahead(int32_t layer, const int32_t *experts, int32_t count) const;
    // Each to its blob, by all threads of the pool. After an error nothing of the blobs may be used: a file may have
    // changed under the read. May throw std::bad_alloc.
    int32_t read(StrataPool *pool, int32_t layer, const int32_t *experts, void *const *blobs, int32_t count) const;
    // How many experts of a layer are read at once: little enough for whoever waits to hear of it soon.
    int32_t at_once(int32_t layer) const;

private:
    int32_t add(const StrataFileLayer &layer, int32_t number);
    int32_t check_unchanged(const FileLayer &layer, int32_t expert) const;

    std::vector<ModelFile> files_;
    std::vector<FileLayer> layers_;
};

}  // namespace strata
