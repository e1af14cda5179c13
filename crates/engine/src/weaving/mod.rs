//! Generated code of a target: sites of points, plans that change them, and calls in progress that are caught up. It uses `program` and
//! `recovery`.

pub(crate) mod additions;
pub(crate) mod arenas;
pub(crate) mod attempt;
pub(crate) mod bodies;
pub(crate) mod catch_up;
pub(crate) mod cost;
pub(crate) mod exits;
pub(crate) mod moving;
pub(crate) mod new_points;
pub(crate) mod original;
pub(crate) mod outlook;
pub(crate) mod parts;
pub(crate) mod plan;
pub(crate) mod points;
pub(crate) mod positions;
pub(crate) mod renewal;
pub(crate) mod sites;
pub(crate) mod trial;
pub(crate) mod unproven;
pub(crate) mod wanted;
