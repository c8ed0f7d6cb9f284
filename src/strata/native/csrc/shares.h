// Numbered items dealt to threads in contiguous shares: a thread reads long runs of memory, and who has finished his own
// share helps the next thread with what nobody has taken yet. Knows no work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace strata {

class Shares {
public:
    Shares(int64_t items, int shares) : items_(items), shares_(shares), next_(new Next[static_cast<size_t>(shares)]) {
        for (int share = 0; share < shares; ++share) next_[share].item.store(begin(share), std::memory_order_relaxed);
    }

    // Calls work(item, next) for items that nobody took, those of `share` first; returns when every item is taken, but
    // others may still be at work. `next`: what probably comes after it, -1 at a share's end.
    template <class Work>
    void work_off(int share, Work &&work) {
        for (int i = 0; i < shares_; ++i) {
            const int from = (share + i) % shares_;
            std::atomic<int64_t> &next = next_[from].item;
            const int64_t end = begin(from + 1);
            while (next.load(std::memory_order_relaxed) < end) {
                const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
                if (item < end) work(item, item + 1 < end ? item + 1 : -1);
            }
        }
    }

    int64_t begin(int share) const { return items_ * share / shares_; }

private:
    struct alignas(64) Next {
        std::atomic<int64_t> item;
    };
    int64_t items_;
    int shares_;
    std::unique_ptr<Next[]> next_;
};

}  // namespace strata
