#pragma once
// Lists the headers that the text of a kernel may use without including them, on a CPU and on a GPU
// (torchgraft.load_inline).

// Another text of the same name may take this one's place in a running process.
#define TORCHGRAFT_REGISTERED_WHEN_TOLD

#include <torchgraft/arguments.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/rows.h>
#include <torchgraft/text.h>
