//! Profiles that are read while they run.

use ingraft_api::{MeasurementId, TotalsReading};
use ingraft_report::SavedProfile;
use ingraft_wire::{profile, totals, v1};
use v1::profiles_client::ProfilesClient;

use super::{Client, PROFILE_PART_BYTES};
use crate::exit::Failure;

impl Client {
    /// Reads the counts of a profile, which goes on.
    pub(crate) async fn profile(&self, MeasurementId(measurement): MeasurementId) -> Result<SavedProfile, Failure> {
        let mut client = ProfilesClient::new(self.service.clone()).max_decoding_message_size(PROFILE_PART_BYTES);
        let answer = client.query(v1::QueryProfileRequest { measurement }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut parts = Vec::new();
        while let Some(answer) = stream.message().await.map_err(|s| self.failure(&s))? {
            parts.extend(answer.part);
        }
        profile::whole(parts).map_err(|e| self.garbled(&e))
    }

    /// Reads the event totals of a profile, which goes on.
    pub(crate) async fn event_totals(
        &self,
        MeasurementId(measurement): MeasurementId,
    ) -> Result<TotalsReading, Failure> {
        let mut client = ProfilesClient::new(self.service.clone());
        let answer = client.event_totals(v1::EventTotalsRequest { measurement }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut reading = TotalsReading::default();
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            totals::add_totals(&mut reading, part).map_err(|e| self.garbled(&e))?;
        }
        Ok(reading)
    }
}
