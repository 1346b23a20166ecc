// Every kernel, once: a row. The choice asks the rows from the top, and takes the first kernel that supports
// the problem and pays for it. From a row follow a value of the enum and the rule of the choice (policy.h),
// the declaration of the launcher (kernels.h), and the case that launches the kernel (dispatch.h).
//
//   ROW(name, launcher, supports, pays, plan)
//
// name: the kernel's file. launcher: the host function there that launches it.
// supports: whether it can compute a problem at all (supports.h). pays: whether it is then the fastest
// (policy.h). plan: how it cuts the work of a problem that it supports (supports.h).
#pragma once

// clang-format off
#define TORCHGRAFT_SHIFT_KERNELS(ROW)                                                                          \
  ROW(planes, launch_planes, supports_planes, planes_pays, plan_planes)                                        \
  ROW(channels_last, launch_channels_last, supports_channels_last, always, plan_channels_last)                 \
  ROW(direct, launch_direct, always, always, plan_direct)
// clang-format on
