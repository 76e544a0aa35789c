import torch
from torch.nn.utils.rnn import pad_sequence


def pad_collate(samples):
    sentences, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(s) for s in sentences])
    tokens = pad_sequence(list(sentences), batch_first=True)
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None], torch.tensor(labels)
