// What a call costs that does nothing but wake: a client tells a controller, which tells N workers; these answer it,
// and it answers the client. Each is a process of its own; they talk by sockets.
//
//     wakes WORKERS CALLS
//
// prints the seconds of all calls.

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 64 };

// A pair of sockets: ends[0] is the asking side's.
static void pair(int ends[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
    perror("socketpair");
    exit(1);
  }
}

static void say(int to) {
  if (write(to, "", 1) != 1) exit(1);
}

static void hear(int from) {
  char byte;
  if (read(from, &byte, 1) != 1) exit(0);  // the other side has ended
}

int main(int argc, char** argv) {
  int workers = argc == 3 ? atoi(argv[1]) : 0, calls = argc == 3 ? atoi(argv[2]) : 0;
  if (workers < 1 || workers > WORKERS || calls < 1) {
    fprintf(stderr, "usage: wakes WORKERS CALLS\n");
    return 2;
  }
  int client[2], worker[WORKERS][2];
  pair(client);
  if (!fork()) {
    close(client[0]);
    for (int i = 0; i < workers; i++) {
      pair(worker[i]);
      if (!fork()) {
        for (int k = 0; k <= i; k++) close(worker[k][0]);
        close(client[1]);
        for (;;) hear(worker[i][1]), say(worker[i][1]);
      }
      close(worker[i][1]);
    }
    for (;;) {
      hear(client[1]);
      for (int i = 0; i < workers; i++) say(worker[i][0]);
      for (int i = 0; i < workers; i++) hear(worker[i][0]);
      say(client[1]);
    }
  }
  close(client[1]);
  struct timespec from, to;
  for (int i = -calls / 10; i < calls; i++) {
    if (i == 0) clock_gettime(CLOCK_MONOTONIC, &from);
    say(client[0]);
    hear(client[0]);
  }
  clock_gettime(CLOCK_MONOTONIC, &to);
  printf("%.9f\n", to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9);
  return 0;
}
