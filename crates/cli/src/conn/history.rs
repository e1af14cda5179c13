//! Histories of values, fetched from the engine.

use ingraft_api::{MeasurementId, PairInfo, Phase};
use ingraft_model::{Course, History};
use ingraft_wire::v1::metrics_client::MetricsClient;
use ingraft_wire::{history, known, v1};

use super::Client;
use crate::exit::Failure;

/// A span of a measurement's time, and the histories of its values in that span.
#[derive(Clone, Debug)]
pub(crate) struct HistorySpan {
    /// The phase; `None` for the whole time.
    pub(crate) phase: Option<Phase>,
    /// Histories, each with the index of its pair.
    pub(crate) histories: Vec<(usize, History)>,
}

impl Client {
    /// Fetches the histories of the whole time of a measurement, then those of its phases if there is more than one.
    pub(crate) async fn chapters(&self, id: MeasurementId, pairs: &[PairInfo]) -> Result<Vec<HistorySpan>, Failure> {
        let (phases, whole) = self.histories(id, None, pairs).await?;
        let mut chapters = vec![HistorySpan { phase: None, histories: whole }];
        if phases.len() > 1 {
            for phase in phases {
                let (_, histories) = self.histories(id, Some(phase.number), pairs).await?;
                chapters.push(HistorySpan { phase: Some(phase), histories });
            }
        }
        Ok(chapters)
    }

    async fn histories(
        &self,
        MeasurementId(measurement): MeasurementId,
        phase: Option<u32>,
        pairs: &[PairInfo],
    ) -> Result<(Vec<Phase>, Vec<(usize, History)>), Failure> {
        use v1::history_response::Event;
        let mut client = MetricsClient::new(self.service.clone());
        let answer = client.history(v1::HistoryRequest { measurement, phase }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let (mut phases, mut histories) = (Vec::new(), Vec::new());
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            match part.event {
                Some(Event::Phases(all)) => phases = known(all.phases).map_err(|e| self.garbled(&e))?,
                Some(Event::Histories(chunk)) => {
                    for one in chunk.histories {
                        let pair = one.pair as usize;
                        let Some(info) = pairs.get(pair) else { continue };
                        let course = if info.metric.is_level() { Course::Level } else { Course::Total };
                        histories.push((pair, history::history(one, course).map_err(|e| self.garbled(&e))?));
                    }
                }
                None => {}
            }
        }
        Ok((phases, histories))
    }

    /// Ends the current phase of a measurement with histories, and begins the next phase.
    pub(crate) async fn start_phase(&self, MeasurementId(measurement): MeasurementId) -> Result<(), Failure> {
        let mut client = MetricsClient::new(self.service.clone());
        let request = v1::StartPhaseRequest { measurement, name: String::new() };
        client.start_phase(request).await.map(drop).map_err(|s| self.failure(&s))
    }
}
