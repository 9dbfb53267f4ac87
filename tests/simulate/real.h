// The system's own functions behind those that a simulation takes over (posix.cpp).
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace shoal::simulate {

struct Real {
  decltype(&::pthread_create) pthread_create;
  decltype(&::pthread_join) pthread_join;
  decltype(&::pthread_mutex_lock) pthread_mutex_lock;
  decltype(&::pthread_mutex_trylock) pthread_mutex_trylock;
  decltype(&::pthread_mutex_unlock) pthread_mutex_unlock;
  decltype(&::pthread_cond_wait) pthread_cond_wait;
  decltype(&::pthread_cond_timedwait) pthread_cond_timedwait;
  decltype(&::pthread_cond_clockwait) pthread_cond_clockwait;
  decltype(&::pthread_cond_signal) pthread_cond_signal;
  decltype(&::pthread_cond_broadcast) pthread_cond_broadcast;
  decltype(&::sched_yield) sched_yield;
  decltype(&::nanosleep) nanosleep;
  decltype(&::clock_nanosleep) clock_nanosleep;
  decltype(&::clock_gettime) clock_gettime;
  decltype(&::_exit) exit_now;
  decltype(&::getpid) getpid;
  decltype(&::gethostname) gethostname;
  decltype(&::open) open;
  decltype(&::write) write;
  decltype(&::pwrite) pwrite;
  decltype(&::ftruncate) ftruncate;
  decltype(&::fsync) fsync;
  decltype(&::rename) rename;
  decltype(&::renameat2) renameat2;
  decltype(&::unlink) unlink;
  decltype(&::unlinkat) unlinkat;
  decltype(&::remove) remove;
  decltype(&::rmdir) rmdir;
  decltype(&::mkdir) mkdir;
  decltype(&::symlink) symlink;
  decltype(&::fopen) fopen;
};

const Real& real();

}  // namespace shoal::simulate
