// Which cores this process may use, in the order in which threads should take them, and who stays on which.
// Knows no work.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <vector>

namespace strata {

// One thread of every physical core first, then their siblings. Empty where the system does not say.
std::vector<int> usable_cpus();

// Cores on which threads of ours stay, one each. Threads that others made are never moved: where one of them runs, ours
// give way. (Two threads that spin on one core take turns of milliseconds, until the system's balancing parts them.)
class Homes {
public:
    // Threads take cores from the second on; the first is for whoever made them. No cores: nobody stays anywhere.
    explicit Homes(std::vector<int> cpus) : free_(std::move(cpus)) {}
    Homes(const Homes &) = delete;
    Homes &operator=(const Homes &) = delete;

    // The calling thread stays on the next free core, as long as one remains; otherwise it runs anywhere.
    void settle();
    // The calling thread stays nowhere any more, before it ends.
    void leave();
    // Whoever stays on the calling thread's core moves to a free one, if there is any.
    void make_way();

private:
    struct Resident {
        pid_t thread;
        int cpu;
    };
    std::mutex mutex_;
    std::vector<Resident> residents_;
    std::vector<int> free_;
};

}  // namespace strata
