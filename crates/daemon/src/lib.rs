//! gRPC services over the engine, and the daemon.
