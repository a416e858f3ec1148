/* The first process of every pod: holds its namespaces and sleeps until it is told to go. */
#include <signal.h>
#include <unistd.h>

static void leave(int signal) {
  (void)signal;
  _exit(0);
}

int main(void) {
  signal(SIGTERM, leave);
  signal(SIGINT, leave);
  for (;;) pause();
}
