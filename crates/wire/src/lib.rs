//! The gRPC messages and their conversions.
