/* A management library of NVIDIA's driver for tests: two GPUs, with the fault that NVML_STUB names. With the fault
   "many" there are eight, and reading an energy counter takes 4.5 ms of CPU time, as measured on an H200. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9, LOST = 15 };
typedef struct { unsigned index; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;

static Device devices[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static Device instances[3] = {{10}, {11}, {12}}; /* of the first GPU; the middle place is empty */
static unsigned n_reads;

static int is(const char *fault) {
    const char *set = getenv("NVML_STUB");
    return set != NULL && strcmp(set, fault) == 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return is("not_loaded") ? NOT_LOADED : OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = is("none") ? 0 : is("many") ? 8 : 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    *device = &devices[index];
    return OK;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    strncpy(name, is("hostile") ? "GPU\x1b[2J\xff\n" : device->index >= 10 ? "Stub A MIG 1g.5gb" : device->index ? "Stub B" : "Stub A", length);
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    strncpy(uuid, device->index >= 10 ? "MIG-a" : device->index ? "GPU-b" : "GPU-a", length);
    return OK;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    if (device->index == 1 && is("lost") && n_reads++ > 0) return LOST;
    rates->gpu = 40 + 10 * device->index;
    rates->memory = 5;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory *memory) {
    memory->total = (device->index >= 10 ? 5ULL : 16ULL) << 30;
    memory->used = (device->index >= 10 ? 1ULL : 4ULL) << 30;
    return OK;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    *milliwatts = 250000 + device->index;
    return is("unsupported") ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) { (void)device; *milliwatts = 300000; return OK; }
int nvmlDeviceGetTemperatureV(Device *device, Temperature *value) { (void)device; value->temperature = 71; return OK; }

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    *reasons = device->index ? 0x1 : 0x4 | 0x40;
    return OK;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    *current = *pending = device->index == 0 && is("mig");
    return device->index == 0 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) { (void)device; *count = 3; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **instance) {
    (void)device;
    *instance = &instances[index];
    return index == 1 ? NOT_FOUND : OK;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    struct timespec now;
    clock_t end = clock() + CLOCKS_PER_SEC / 1000 * 9 / 2;
    while (is("many") && clock() < end) continue;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = is("rising") ? now.tv_sec * 100000ULL + now.tv_nsec / 10000 : 5000 + device->index; /* 100 W */
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    if (device->index == 1 || device->index == 12) { *count = 0; return OK; }
    if (*count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
    *count = 2;
    processes[0] = (Process){1, 1 << 20, 0, 0};
    processes[1] = (Process){4000000, ~0ULL, 0, 0};
    return OK;
}
