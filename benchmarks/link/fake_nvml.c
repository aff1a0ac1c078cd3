/* Stands in for the driver's library where there is no GPU: eight cards at work, whose figures change with every look. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static unsigned wander(void *card, unsigned span) {
  static int seeded;
  struct timeval now;
  if (!seeded) { gettimeofday(&now, NULL); srand(now.tv_usec ^ getpid()); seeded = 1; }
  return (unsigned)rand() % span + (unsigned)(size_t)card;
}
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void *card, char *text, unsigned size) { snprintf(text, size, "NVIDIA B300"); return 0; }
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) {
  snprintf(text, size, "GPU-0b2f7c1e-5d7a-4c38-9a51-0000000000%02zu", (size_t)card); return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.95.05"); return 0; }
int nvmlDeviceGetMemoryInfo(void *card, unsigned long long *m) {
  m[0] = 96ULL << 30; m[2] = (80ULL << 30) + ((unsigned long long)wander(card, 256) << 20); m[1] = m[0] - m[2]; return 0; }
int nvmlDeviceGetUtilizationRates(void *card, unsigned *busy) { busy[0] = 70 + wander(card, 20); busy[1] = 40; return 0; }
int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *degrees) { *degrees = 60 + wander(card, 8); return 0; }
int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) { *milliwatts = 600000 + wander(card, 90000); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, void *processes) { *count = 0; return 0; }
