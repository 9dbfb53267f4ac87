// Stands in for NVIDIA's driver, libcuda.so.1, while cuDNN makes a plan: it accepts kernels and never runs
// them. There is no device.
extern "C" {

int cuInit(unsigned) { return 100; }  // no device
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 0, 0; }
int cuGetErrorString(int, const char** text) { return *text = "there is no driver", 0; }

int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  static int loaded;
  return *library = &loaded, 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char*) { return *kernel = library, 0; }
int cuLibraryUnload(void*) { return 0; }

// cuDNN looks these up, but does not call them.
#define SHOAL_NOT_CALLED(name) \
  int name() { return 801; }
SHOAL_NOT_CALLED(cuCtxGetCurrent)
SHOAL_NOT_CALLED(cuCtxGetLimit)
SHOAL_NOT_CALLED(cuCtxPopCurrent)
SHOAL_NOT_CALLED(cuCtxPushCurrent)
SHOAL_NOT_CALLED(cuDeviceGet)
SHOAL_NOT_CALLED(cuGetErrorName)
SHOAL_NOT_CALLED(cuKernelGetAttribute)
SHOAL_NOT_CALLED(cuKernelSetAttribute)
SHOAL_NOT_CALLED(cuLaunchCooperativeKernel)
SHOAL_NOT_CALLED(cuLaunchKernel)
SHOAL_NOT_CALLED(cuLaunchKernelEx)
SHOAL_NOT_CALLED(cuLibraryLoadFromFile)
SHOAL_NOT_CALLED(cuLinkAddData)
SHOAL_NOT_CALLED(cuLinkComplete)
SHOAL_NOT_CALLED(cuLinkCreate)
SHOAL_NOT_CALLED(cuLinkDestroy)
SHOAL_NOT_CALLED(cuOccupancyMaxPotentialClusterSize)
SHOAL_NOT_CALLED(cuStreamGetCtx)

}  // extern "C"
