/* Logs every change of files below $DISK_ROOT to $DISK_LOG, in the order in which they took effect; for LD_PRELOAD.

   Records are lines, a W record is followed by its data: "W inode offset length", "T inode size" (truncate), "S inode"
   (fsync of a file), "D path" (fsync of a folder), "C inode path" (new file), "M path" (new folder), "R path<TAB>path",
   "U path". Changes through memory maps are not logged; SQLite uses them only for -shm files, which hold no data. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int log_file = -1;
static ssize_t (*real_write)(int, const void *, size_t);

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void open_log(void) {
    const char *path = getenv("DISK_LOG");
    real_write = (__typeof__(real_write))dlsym(RTLD_NEXT, "write");
    root = getenv("DISK_ROOT");
    int opened = path && root ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (opened >= 0) {
        log_file = fcntl(opened, F_DUPFD_CLOEXEC, 100);
        close(opened);
    }
}

static int is_below(const char *path) {
    size_t length = log_file < 0 ? 0 : strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static void put(const void *data, size_t length, const char *format, ...) {
    char head[2 * PATH_MAX + 64];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(head, sizeof head, format, args);
    va_end(args);
    struct iovec parts[2] = {{head, size}, {(void *)data, length}};
    static ssize_t (*real_writev)(int, const struct iovec *, int);
    if (!real_writev) real_writev = (__typeof__(real_writev))dlsym(RTLD_NEXT, "writev");
    if (real_writev(log_file, parts, 2) != (ssize_t)(size + length)) abort();
}

/* The path of a descriptor, or of a path relative to a folder; "" outside of the root. */
static const char *path_of(int descriptor, char *found) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = log_file < 0 ? -1 : readlink(link, found, PATH_MAX - 1);
    found[length < 0 ? 0 : length] = 0;
    return is_below(found) ? found : "";
}

static const char *full(int folder, const char *path, char *found) {
    if (*path == '/') return is_below(path) ? path : "";
    if (folder == AT_FDCWD || !*path_of(folder, found)) return "";
    size_t length = strlen(found);
    snprintf(found + length, PATH_MAX - length, "/%s", path);
    return found;
}

static unsigned long inode(int descriptor, mode_t *mode) {
    struct stat status;
    if (log_file < 0 || fstat(descriptor, &status)) return *mode = 0;
    *mode = status.st_mode & S_IFMT;
    return status.st_ino;
}

static unsigned long logged_file(int descriptor) {
    char found[PATH_MAX];
    mode_t mode;
    unsigned long number = inode(descriptor, &mode);
    return mode == S_IFREG && *path_of(descriptor, found) ? number : 0;
}

static int open_file(int (*real)(int, const char *, int, ...), int folder, const char *path, int flags, mode_t mode) {
    if (log_file < 0 || (flags & O_TMPFILE) == O_TMPFILE || !(flags & (O_CREAT | O_TRUNC)))
        return real(folder, path, flags, mode);
    struct stat before;
    char found[PATH_MAX];
    pthread_mutex_lock(&order);
    int existed = !fstatat(folder, path, &before, 0);
    int descriptor = real(folder, path, flags, mode);
    unsigned long number = descriptor < 0 ? 0 : logged_file(descriptor);
    if (number && !existed) put("", 0, "C %lu %s\n", number, path_of(descriptor, found));
    else if (number && (flags & O_TRUNC)) put("", 0, "T %lu 0\n", number);
    pthread_mutex_unlock(&order);
    return descriptor;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list args; va_start(args, flags); mode = va_arg(args, mode_t); va_end(args); }

static int real_openat(int folder, const char *path, int flags, ...) {
    static int (*real)(int, const char *, int, ...);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "openat");
    MODE(flags)
    return real(folder, path, flags, mode);
}

int open(const char *path, int flags, ...) { MODE(flags) return open_file(real_openat, AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_file(real_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_file(real_openat, folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_file(real_openat, folder, path, flags | O_LARGEFILE, mode); }

ssize_t write(int descriptor, const void *data, size_t length) {
    unsigned long number = logged_file(descriptor);
    if (!number) return real_write(descriptor, data, length);
    pthread_mutex_lock(&order);
    ssize_t written = real_write(descriptor, data, length);
    if (written > 0) put(data, written, "W %lu %ld %ld\n", number, (long)lseek(descriptor, 0, SEEK_CUR) - (long)written, (long)written);
    pthread_mutex_unlock(&order);
    return written;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    if (logged_file(descriptor)) return write(descriptor, parts[0].iov_base, parts[0].iov_len); /* a short write */
    REAL(writev);
    return real(descriptor, parts, count);
}

static ssize_t write_at(ssize_t (*real)(int, const void *, size_t, off_t), int descriptor, const void *data, size_t length, off_t offset) {
    unsigned long number = logged_file(descriptor);
    if (!number) return real(descriptor, data, length, offset);
    pthread_mutex_lock(&order);
    ssize_t written = real(descriptor, data, length, offset);
    if (written > 0) put(data, written, "W %lu %ld %ld\n", number, (long)offset, (long)written);
    pthread_mutex_unlock(&order);
    return written;
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset) { REAL(pwrite); return write_at(real, descriptor, data, length, offset); }
ssize_t pwrite64(int descriptor, const void *data, size_t length, off_t offset) { REAL(pwrite64); return write_at(real, descriptor, data, length, offset); }

#define CHANGE(call, logged, ...) \
    pthread_mutex_lock(&order); \
    int result = call; \
    if (!result && (logged)) put("", 0, __VA_ARGS__); \
    pthread_mutex_unlock(&order); \
    return result

int ftruncate(int descriptor, off_t size) { REAL(ftruncate); unsigned long n = logged_file(descriptor); CHANGE(real(descriptor, size), n, "T %lu %ld\n", n, (long)size); }
int ftruncate64(int descriptor, off_t size) { REAL(ftruncate64); unsigned long n = logged_file(descriptor); CHANGE(real(descriptor, size), n, "T %lu %ld\n", n, (long)size); }

static int sync_file(int (*real)(int), int descriptor) {
    char found[PATH_MAX];
    mode_t mode;
    unsigned long number = inode(descriptor, &mode);
    const char *path = path_of(descriptor, found);
    if (mode == S_IFDIR) { CHANGE(real(descriptor), *path, "D %s\n", path); }
    CHANGE(real(descriptor), *path && mode == S_IFREG, "S %lu\n", number);
}

int fsync(int descriptor) { REAL(fsync); return sync_file(real, descriptor); }
int fdatasync(int descriptor) { REAL(fdatasync); return sync_file(real, descriptor); }

int mkdirat(int folder, const char *path, mode_t mode) { REAL(mkdirat); char f[PATH_MAX]; const char *p = full(folder, path, f); CHANGE(real(folder, path, mode), *p, "M %s\n", p); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int unlinkat(int folder, const char *path, int flags) { REAL(unlinkat); char f[PATH_MAX]; const char *p = full(folder, path, f); CHANGE(real(folder, path, flags), *p, "U %s\n", p); }
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int renameat(int folder, const char *path, int other, const char *target) {
    REAL(renameat);
    char from[PATH_MAX], to[PATH_MAX];
    const char *p = full(folder, path, from), *t = full(other, target, to);
    CHANGE(real(folder, path, other, target), *p && *t, "R %s\t%s\n", p, t);
}
int rename(const char *path, const char *target) { return renameat(AT_FDCWD, path, AT_FDCWD, target); }
