#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

int32_t pw_thread(void) {
  static __thread int32_t number;  // 0 until the thread has asked; nothing here is called in the child of a fork
  if (number == 0) number = (int32_t)syscall(SYS_gettid);  // glibc has gettid from 2.30 on
  return number;
}
