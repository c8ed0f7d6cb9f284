// The part of the test program whose experts stay in a file. Knows only its name.
#pragma once

void hammer_reads(int rounds);
