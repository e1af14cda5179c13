//! The code of metrics, and its costs.

use ingraft_api::{LowerRequest, LoweredLine, LoweredMetric, LoweredPiece};
use ingraft_model::PointKind;

use crate::field::{FieldError, WireField, read};
use crate::measure::flavors;
use crate::metric::sources;
use crate::v1;

messages! {
    LoweredMetric => LoweredMetric { metric, focus, pieces, problem, applies }
    LoweredLine => LoweredLine { label, at, bytes, text }
}

nested! { LoweredPiece => LoweredPiece }

impl From<LowerRequest> for v1::LowerRequest {
    fn from(request: LowerRequest) -> Self {
        let LowerRequest { metrics, focus, target, definitions, flavors, code } = request;
        v1::LowerRequest {
            metrics,
            focus: focus.to_wire(),
            target: target.to_wire(),
            definitions: definitions.into_iter().map(Into::into).collect(),
            code,
            flavors: flavors.to_wire(),
        }
    }
}

impl TryFrom<v1::LowerRequest> for LowerRequest {
    type Error = FieldError;

    fn try_from(request: v1::LowerRequest) -> Result<Self, FieldError> {
        Ok(LowerRequest {
            metrics: request.metrics,
            focus: read("focus", request.focus)?,
            target: read("target", request.target)?,
            definitions: sources(request.definitions),
            flavors: flavors(request.flavors)?,
            code: request.code,
        })
    }
}

impl From<LoweredPiece> for v1::LoweredPiece {
    fn from(piece: LoweredPiece) -> Self {
        let LoweredPiece { point, functions, function, snippet, cycles, ns, code, refused } = piece;
        v1::LoweredPiece {
            point: point.to_wire(),
            after: point == PointKind::CallAfter,
            functions,
            function,
            snippet,
            cycles,
            ns,
            code: code.to_wire(),
            refused: refused.to_wire(),
        }
    }
}

impl TryFrom<v1::LoweredPiece> for LoweredPiece {
    type Error = FieldError;

    fn try_from(piece: v1::LoweredPiece) -> Result<Self, FieldError> {
        let v1::LoweredPiece { point, after, functions, function, snippet, cycles, ns, code, refused } = piece;
        let point = read("point", point)?;
        Ok(LoweredPiece {
            point: if after && point == PointKind::CallBefore { PointKind::CallAfter } else { point },
            functions,
            function,
            snippet,
            cycles,
            ns,
            code: read("code", code)?,
            refused: read("refused", refused)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};
    use crate::field::round_trips;

    impl Any for LoweredPiece {
        fn any(s: &mut Source<'_>) -> Self {
            LoweredPiece {
                point: if s.next() { PointKind::CallAfter } else { s.next() },
                functions: s.next(),
                function: s.next(),
                snippet: s.next(),
                cycles: s.next(),
                ns: s.next(),
                code: s.next(),
                refused: s.next(),
            }
        }
    }

    impl Any for LowerRequest {
        fn any(s: &mut Source<'_>) -> Self {
            LowerRequest {
                metrics: s.next(),
                focus: s.next(),
                target: s.next(),
                definitions: s.next(),
                flavors: s.next(),
                code: s.next(),
            }
        }
    }

    #[test]
    fn lowered_metrics_come_back() {
        round_trips::<LoweredMetric, v1::LoweredMetric>();
        comes_back(|request: LowerRequest| {
            v1::LowerRequest::from(request).try_into().map_err(|e: FieldError| e.to_string())
        });
    }

    #[test]
    fn wrong_requests_name_their_field() {
        let wrong = v1::LowerRequest { flavors: vec![String::new()], ..v1::LowerRequest::default() };
        assert!(LowerRequest::try_from(wrong).unwrap_err().to_string().starts_with("flavors[0]: is no flavor"));
    }
}
