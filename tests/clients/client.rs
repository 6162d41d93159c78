//! A client in Rust, with bindings written by hand: handles are dropped with their owners, errors are `Result`s, and a
//! future's callback is a channel. `client ADDRESS` runs a program and checks its results.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::{size_of, size_of_val};
use std::ptr::null;
use std::sync::mpsc;

#[repr(C)]
struct SessionOptions {
    struct_size: usize,
    address: *const c_char,
    devices: i32,
    memory_limit: i64,
}

#[repr(C)]
struct CompileOptions {
    struct_size: usize,
    code: *const u8,
    code_size: usize,
    // Everything behind is optional, and struct_size says that it is not there.
}

#[repr(C)]
struct Tiles {
    num_dims: usize,
    tiles: *const i64,
}

#[repr(C)]
struct HostOptions {
    struct_size: usize,
    data: *const c_void,
    element: c_int,
    mode: c_int,
    num_dims: usize,
    dims: *const i64,
    byte_strides: *const i64,
    tiles: Tiles,
    devices: *const i32,
    num_devices: usize,
    released: Option<extern "C" fn(*mut c_void)>,
    released_arg: *mut c_void,
}

const F32: c_int = 11;
const BORROW: c_int = 1;
const INVALID_ARGUMENT: c_int = 3;
const WHOLE: i32 = -1;

extern "C" {
    fn pathways_drop(handle: u64) -> u64;
    fn pathways_error_code(error: u64) -> c_int;
    fn pathways_error_message(error: u64) -> *const c_char;
    fn pathways_session_open(options: *const SessionOptions, session: *mut u64) -> u64;
    fn pathways_compile(session: u64, options: *const CompileOptions, executable: *mut u64) -> u64;
    fn pathways_array_from_host(session: u64, options: *const HostOptions, array: *mut u64) -> u64;
    fn pathways_array_read(array: u64, shard: i32, data: *mut c_void, size: usize, future: *mut u64) -> u64;
    fn pathways_run(
        executable: u64,
        options: *const c_void,
        inputs: *const u64,
        num_inputs: usize,
        outputs: *mut u64,
        num_outputs: usize,
        done: *mut u64,
    ) -> u64;
    fn pathways_future_wait(future: u64, timeout_ns: i64) -> u64;
    fn pathways_future_then(future: u64, then: extern "C" fn(u64, *mut c_void), arg: *mut c_void) -> u64;
}

/// Whatever the library gave a handle for.
struct Owned(u64);

impl Drop for Owned {
    fn drop(&mut self) {
        // One that ended with its session is an error, which is to be dropped too.
        let error = unsafe { pathways_drop(self.0) };
        if error != 0 {
            unsafe { pathways_drop(error) };
        }
    }
}

#[derive(Debug)]
struct Error {
    code: c_int,
    message: String,
}

/// Calls a function that writes a handle.
fn made(call: impl FnOnce(*mut u64) -> u64) -> Result<Owned, Error> {
    let mut handle = 0;
    check(call(&mut handle))?;
    Ok(Owned(handle))
}

fn check(error: u64) -> Result<(), Error> {
    if error == 0 {
        return Ok(());
    }
    let owned = Owned(error);
    let message = unsafe { CStr::from_ptr(pathways_error_message(owned.0)) }.to_string_lossy().into_owned();
    Err(Error { code: unsafe { pathways_error_code(owned.0) }, message })
}

/// Takes over a vector: the library drops it when no device needs it any more.
extern "C" fn drop_vector(vector: *mut c_void) {
    drop(unsafe { Box::from_raw(vector as *mut Vec<f32>) });
}

fn array(session: &Owned, values: Vec<f32>) -> Result<Owned, Error> {
    let dims = [values.len() as i64];
    let data = values.as_ptr() as *const c_void;
    let vector = Box::into_raw(Box::new(values));
    let options = HostOptions {
        struct_size: size_of::<HostOptions>(),
        data,
        element: F32,
        mode: BORROW,
        num_dims: 1,
        dims: dims.as_ptr(),
        byte_strides: null(),
        tiles: Tiles { num_dims: 0, tiles: null() },
        devices: null(),
        num_devices: 0,
        released: Some(drop_vector),
        released_arg: vector as *mut c_void,
    };
    let out = made(|handle| unsafe { pathways_array_from_host(session.0, &options, handle) });
    if out.is_err() {
        drop_vector(vector as *mut c_void); // a call that fails takes nothing over
    }
    out
}

extern "C" fn send(error: u64, sender: *mut c_void) {
    let sender = unsafe { Box::from_raw(sender as *mut mpsc::Sender<Result<(), Error>>) };
    sender.send(check(error)).expect("no receiver");
}

fn main() -> Result<(), Error> {
    let address = CString::new(std::env::args().nth(1).expect("usage: client ADDRESS")).unwrap();
    let options =
        SessionOptions { struct_size: size_of::<SessionOptions>(), address: address.as_ptr(), devices: 0, memory_limit: 0 };
    let session = made(|handle| unsafe { pathways_session_open(&options, handle) })?;

    let code = "module @square { func.func public @main(%x: tensor<5xf32>) -> tensor<5xf32> {\n\
                %0 = stablehlo.multiply %x, %x : tensor<5xf32>\n return %0 : tensor<5xf32> } }";
    let options = CompileOptions { struct_size: size_of::<CompileOptions>(), code: code.as_ptr(), code_size: code.len() };
    let square = made(|handle| unsafe { pathways_compile(session.0, &options, handle) })?;

    let x = array(&session, vec![1.0, 2.0, 3.0, 4.0, 5.0])?;
    let mut done = 0;
    let run = |input: &Owned, done: *mut u64| {
        made(|handle| unsafe { pathways_run(square.0, null(), &input.0, 1, handle, 1, done) })
    };
    let y = run(&run(&x, std::ptr::null_mut())?, &mut done)?;
    let done = Owned(done);
    let (sender, receiver) = mpsc::channel::<Result<(), Error>>();
    check(unsafe { pathways_future_then(done.0, send, Box::into_raw(Box::new(sender)) as *mut c_void) })?;
    receiver.recv().expect("the callback did not come")?;

    let mut values = [0f32; 5];
    let read = made(|future| unsafe {
        pathways_array_read(y.0, WHOLE, values.as_mut_ptr() as *mut c_void, size_of_val(&values), future)
    })?;
    check(unsafe { pathways_future_wait(read.0, -1) })?;
    assert_eq!(values, [1.0, 16.0, 81.0, 256.0, 625.0]);

    let wrong = run(&array(&session, vec![1.0])?, std::ptr::null_mut()).err().expect("a wrong shape was taken");
    assert!(wrong.code == INVALID_ARGUMENT && wrong.message.contains("f32[1]"), "{wrong:?}");
    println!("ok");
    Ok(())
}
