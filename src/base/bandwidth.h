// The measured limit that decoding is judged by.
#pragma once

#include "base/threads.h"

namespace halftone {

// Bytes a second that the pool's threads together read from memory: the best of several passes over a buffer that is
// far larger than the caches (256 MiB). Takes about half a second.
double measure_read_bandwidth(ThreadPool& pool);

}  // namespace halftone
