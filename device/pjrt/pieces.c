#include "call.h"

pwdrv_status pwdrv_buffer_rows(const PJRT_Api* api, PJRT_Buffer* buffer, size_t num_dims, bool* rows) {
  PWDRV_ARGS(PJRT_Buffer_GetMemoryLayout);
  args.buffer = buffer;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Buffer_GetMemoryLayout);
  if (PWDRV_FAILED(status)) return status;
  *rows = args.layout.type == PJRT_Buffer_MemoryLayout_Type_Tiled && args.layout.tiled.num_tiles == 0 &&
          args.layout.tiled.minor_to_major_size == num_dims;
  for (size_t i = 0; *rows && i < num_dims; i++) {
    *rows = args.layout.tiled.minor_to_major[i] == (int64_t)(num_dims - 1 - i);
  }
  return status;
}

pwdrv_status pwdrv_slice(const PJRT_Api* api, PJRT_Buffer* buffer, void* dst, int64_t offset, int64_t size,
                         PJRT_Event** event) {
  PWDRV_DO(PJRT_Buffer_CopyRawToHost, args.buffer = buffer; args.dst = dst; args.offset = offset;
           args.transfer_size = size, PWDRV_MADE(events, *event = args.event));
}

pwdrv_status pwdrv_receive(const PJRT_Api* api, PJRT_Client* client, int type, const int64_t* dims, size_t num_dims,
                           PJRT_Memory* memory, pwdrv_incoming** manager, PJRT_Buffer** out) {
  PJRT_ShapeSpec spec = {.struct_size = PJRT_ShapeSpec_STRUCT_SIZE, .dims = dims, .num_dims = num_dims,
                         .element_type = (PJRT_Buffer_Type)type};
  PWDRV_STEP(PJRT_Client_CreateBuffersForAsyncHostToDevice, args.client = client; args.shape_specs = &spec;
             args.num_shape_specs = 1; args.memory = memory, PWDRV_MADE(incoming, *manager = args.transfer_manager));
  PWDRV_DO(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, args.transfer_manager = *manager,
           PWDRV_MADE(buffers, *out = args.buffer_out));
}

pwdrv_status pwdrv_incoming_write(const PJRT_Api* api, pwdrv_incoming* manager, const void* data, int64_t offset,
                                  int64_t size, bool last, PJRT_Event** event) {
  PWDRV_DO(PJRT_AsyncHostToDeviceTransferManager_TransferData, args.transfer_manager = manager; args.data = data;
           args.offset = offset; args.transfer_size = size; args.is_last_transfer = last,
           PWDRV_MADE(events, *event = args.done_with_h2d_transfer));
}

pwdrv_status pwdrv_incoming_fail(const PJRT_Api* api, pwdrv_incoming* manager, int code, const char* message,
                                 size_t message_size) {
  PWDRV_DO(PJRT_AsyncHostToDeviceTransferManager_SetBufferError, args.transfer_manager = manager;
           args.error_code = (PJRT_Error_Code)code; args.error_message = message;
           args.error_message_size = message_size, );
}

pwdrv_status pwdrv_incoming_destroy(const PJRT_Api* api, pwdrv_incoming* manager) {
  PWDRV_COUNT(incoming, -1);
  PWDRV_DO(PJRT_AsyncHostToDeviceTransferManager_Destroy, args.transfer_manager = manager, );
}
