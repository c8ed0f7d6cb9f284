// Signals stay with the threads that the program made itself: Python's Ctrl-C must not land on one of ours.
// Knows no thread.
#pragma once

#include <signal.h>

namespace strata {

// Threads started while an object of this lives take no signals.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
    sigset_t before_;
};

}  // namespace strata
