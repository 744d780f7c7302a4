/* engine.c — a library that must not be loaded: it says so in the file that FAKE_LOADED names. */
#include "fake.h"
