// A driver library of eight cards for the real nvidia-ml-py. It lacks what an old driver lacks, until FAKE_CONTROL names a file
// of lines "key card value", read at every call: count, lost, uncorrected, corrected, remap, throttle, xid.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMED_OUT = 10, IS_LOST = 15 };
typedef struct { unsigned pid; unsigned long long used; unsigned a, b; } proc;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event;

static size_t card_of(void *h) { return (size_t)h - 1; }

// The value of the nth line for the key (and the card, where it is not -1); 0 where there is none.
static int control(const char *key, long card, int nth, long *at, long long *value) {
  const char *name = getenv("FAKE_CONTROL");
  FILE *f = name ? fopen(name, "r") : NULL;
  char word[64]; long number; long long amount; int found = 0;
  if (!f) return 0;
  while (!found && fscanf(f, "%63s %ld %lld", word, &number, &amount) == 3)
    if (!strcmp(word, key) && (card < 0 || number == card) && nth-- == 0) { found = 1; *at = number; *value = amount; }
  fclose(f);
  return found;
}
static int tell(const char *key, void *h, long long *value) {
  long at;
  if (control("lost", card_of(h), 0, &at, value)) return IS_LOST;
  if (!getenv("FAKE_CONTROL")) return NOT_SUPPORTED;
  if (!control(key, card_of(h), 0, &at, value)) *value = 0;
  return OK;
}

int nvmlInitWithFlags(unsigned f) { if (getenv("FAKE_HANG")) sleep(600); return OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) {
  long at; long long value; *n = control("count", -1, 0, &at, &value) ? value : 8; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  long at; long long value; *h = (void *)(size_t)(i + 1); return control("lost", i, 0, &at, &value) ? IS_LOST : OK; }
int nvmlDeviceGetIndex(void *h, unsigned *i) { *i = card_of(h); return OK; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) { snprintf(s, n, "NVIDIA B300"); return OK; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { snprintf(s, n, "GPU-%zu", card_of(h)); return OK; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.95"); return OK; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) {
  m[0] = 96ULL << 30; m[2] = 1ULL << 30; m[1] = m[0] - m[2]; return OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, proc *p) {
  const char *name = getenv("FAKE_PID_FILE"); FILE *f = name && card_of(h) == 0 ? fopen(name, "r") : NULL;
  unsigned pid, room = *n;
  int have = f && fscanf(f, "%u", &pid) == 1;
  if (f) fclose(f);
  *n = have;
  if (!have) return OK;
  if (room < 1) return TOO_SMALL;
  p[0].pid = pid; p[0].used = 3ULL << 30; return OK; }
int nvmlDeviceGetTotalEccErrors(void *h, unsigned kind, unsigned counter, unsigned long long *n) {
  long long value = 0; int code = tell(kind == 1 ? "uncorrected" : "corrected", h, &value); *n = value; return code; }
int nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  long long value = 0; int code = tell("remap", h, &value);
  *corrected = *uncorrected = 0; *pending = value & 1; *failed = value >> 1 & 1; return code; }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *reasons) {
  long long value = 0; int code = tell("throttle", h, &value); *reasons = value; return code; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *milliwatts) { *milliwatts = 1100000; return OK; }
int nvmlEventSetCreate(void **set) { *set = (void *)1; return getenv("FAKE_CONTROL") ? OK : NOT_SUPPORTED; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) { return types == 8 ? OK : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, event *e, unsigned milliseconds) {
  static int given;
  for (unsigned waited = 0; waited <= milliseconds; waited += 20, usleep(20000)) {
    long at; long long xid;
    if (control("xid", -1, given, &at, &xid)) {
      given++; memset(e, 0, sizeof *e); e->device = (void *)(size_t)(at + 1); e->type = 8; e->data = xid; return OK; }
  }
  return TIMED_OUT; }

// What only a readiness sweep asks. Keys: cuda (as NVML gives it), default-power (W), mode, mig, path, peer, nvlink.
static int told(const char *key, void *h, long long usual, long long *value) {
  long at;
  if (!getenv("FAKE_CONTROL")) return NOT_SUPPORTED;
  if (!control(key, card_of(h), 0, &at, value)) *value = usual;
  return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  long long value = 0; int code = told("cuda", (void *)1, 13000, &value); *version = value; return code; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *h, unsigned *milliwatts) {
  long long value = 0; int code = told("default-power", h, 1100, &value); *milliwatts = value * 1000; return code; }
int nvmlDeviceGetComputeMode(void *h, unsigned *mode) {
  long long value = 0; int code = told("mode", h, 0, &value); *mode = value; return code; }
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending) {
  long long value = 0; int code = told("mig", h, 0, &value); *now = *pending = value; return code; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level) {
  long long value = 0; int code = told("path", a, 50, &value); *level = value; return code; }
int nvmlDeviceGetP2PStatus(void *a, void *b, unsigned index, unsigned *status) {
  long long value = 0; int code = told(index == 2 ? "nvlink" : "peer", a, 0, &value); *status = value; return code; }
